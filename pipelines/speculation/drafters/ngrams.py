"""NgramIndex: where did these last tokens stand before, and what followed?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DEPTH = 8  # tokens of the longest n-gram; entries that a token adds at most
_BASE, _MASK = 0x9E3779B97F4A7C15, (1 << 61) - 1
_POSITION = (1 << 32) - 1  # the low half of an entry; the number of occurrences is above

Tail = tuple[int, ...]  # fingerprints of the last 1, 2, ... DEPTH tokens of a text


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known end of a text. `share` of its `count` occurrences went on with the same token as the latest,
    which is at position `end`."""

    length: int
    end: int
    count: int
    share: float


def longer(tail: Tail, tokens: Iterable[int]) -> Tail:
    """The tail of the text with some tokens more."""
    for token in tokens:
        tail = tuple([(shorter * _BASE + token + 1) & _MASK for shorter in (0, *tail[: DEPTH - 1])])
    return tail


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

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            position = len(self.tokens)
            for fingerprint in self.tail:
                count = self._entries.get(fingerprint, 0) >> 32
                self._entries[fingerprint] = (count + 1) << 32 | position
            self.tokens.append(token)
            self.tail = longer(self.tail, (token,))

    def match(self, tail: Tail) -> Match | None:
        """The longest n-gram of a tail that occurred with a successor, or None."""
        for length in range(len(tail), 0, -1):
            entry = self._entries.get(tail[length - 1])
            if entry is not None:
                end = entry & _POSITION
                counted = min(length, DEPTH - 1)  # the longest has no entry with its successor
                total = self._entries[tail[counted - 1]] >> 32
                followed = (tail[counted - 1] * _BASE + self.tokens[end] + 1) & _MASK  # as `longer` would have it
                same = self._entries.get(followed, 0) >> 32
                return Match(length, end, entry >> 32, (same + 1) / (total + 2))
        return None
