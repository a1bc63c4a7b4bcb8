"""NgramIndex: where did these last tokens stand before, and what followed?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

MANY = 16  # tokens whose fingerprints are computed all at once
DEPTH = 8  # tokens of the longest n-gram; entries that a token adds at most
_BASE, _MASK = 0x9E3779B97F4A7C15, (1 << 61) - 1
_POSITION = (1 << 32) - 1  # the low half of an entry; the number of occurrences is above

Tail = tuple[int, ...]  # fingerprints of the last 1, 2, ... DEPTH tokens of a text


class Match(NamedTuple):
    """The longest known end of a text. `share` of its `times` occurrences went on with the same token as the latest,
    which is at position `end`. A tuple, as many are made in every pass."""

    length: int
    end: int
    times: int
    share: float


def longer(tail: Tail, tokens: Iterable[int]) -> Tail:
    """The tail of the text with some tokens more."""
    for token in tokens:
        tail = tuple([(shorter * _BASE + token + 1) & _MASK for shorter in (0, *tail[: DEPTH - 1])])
    return tail


def _tails(tail: Tail, tokens: Sequence[int]) -> Iterator[Tail]:
    """The tail of a text behind each of some tokens more."""
    if len(tokens) >= MANY:
        yield from _many_tails(tail, tokens)
        return
    for token in tokens:
        tail = longer(tail, (token,))
        yield tail


def _many_tails(tail: Tail, tokens: Sequence[int]) -> Iterator[Tail]:
    """The same, all at once, as for a prompt, which is read while somebody waits."""
    added = np.array(tokens, np.uint64) + np.uint64(1)
    found = np.empty((len(tokens), DEPTH), np.uint64)
    shorter = np.zeros(len(tokens), np.uint64)
    for i, before in enumerate((*tail, *[0] * DEPTH)[:DEPTH]):
        found[:, i] = (shorter * np.uint64(_BASE) + added) & np.uint64(_MASK)  # of a product modulo 2^64, the low bits
        shorter = np.concatenate(([np.uint64(before)], found[:-1, i]))
    for length, fingerprints in enumerate(found.tolist(), len(tail) + 1):
        yield tuple(fingerprints[:length])


class NgramIndex:
    """All n-grams of up to DEPTH tokens of a growing text that are followed by something.

    One dictionary from fingerprint to the position behind the latest occurrence and the number of occurrences. A token
    costs DEPTH look-ups and at most DEPTH entries, less than 2 kB. Two n-grams of the same fingerprint, about one pair
    in 10^18, are taken for each other: a wrong guess, no more.
    """

    __slots__ = ("_entries", "tail", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.tail: Tail = ()
        self._entries: dict[int, int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        entries, known = self._entries, self._entries.get
        for position, tail in enumerate(_tails(self.tail, tokens), len(self.tokens)):
            for fingerprint in self.tail:
                entries[fingerprint] = (known(fingerprint, 0) >> 32) + 1 << 32 | position
            self.tail = tail
        self.tokens += tokens

    def match(self, tail: Tail) -> Match | None:
        """The longest n-gram of a tail that occurred with a successor, or None."""
        known = self._entries.get
        for length in range(len(tail), 0, -1):
            entry = known(tail[length - 1])
            if entry is not None:
                end = entry & _POSITION
                counted = tail[min(length, DEPTH - 1) - 1]  # the longest has no entry with its successor
                total = self._entries[counted] >> 32
                followed = (counted * _BASE + self.tokens[end] + 1) & _MASK  # as `longer` would have it
                same = known(followed, 0) >> 32
                return Match(length, end, entry >> 32, (same + 1) / (total + 2))
        return None
