"""Suffix: drafts from an index of the request's own text, and resumes a copy after an edit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...engine.request import Request
from ..acceptance import AcceptanceModel, Features
from .base import EARLIER_TURN, Proposal

WORTH_RESUMING = 4  # tokens of a copy whose place is remembered when it breaks off
SETTLED = 8  # tokens of a new copy after which the old one's place is forgotten
REACH = 48  # tokens on either side within which a copy is taken up again
LONGEST_REPLACEMENT = 12  # tokens, on either side
MOST_REPLACEMENTS = 4  # that begin with the same token

MANY = 256  # tokens that are entered all at once
DEPTH = 8  # tokens of the longest n-gram; entries that a token adds at most
_BASE, _MASK = 0x9E3779B97F4A7C15, (1 << 61) - 1
_POSITION = (1 << 32) - 1  # the low half of an entry; the number of occurrences is above

# Weights of the features below, bias first, fitted to edits, completions and chats over a thousand functions; the
# acceptance learns on from here.
PRIORS = {
    "copy": (-2.5, 4.09, 2.07, 2.43, -0.02, -0.86, 0.34, -0.05),
    "follow": (3.15, 1.03, 1.43, 2.48, -2.33, -4.83, -0.53, 1.27),
    "match": (-0.19, 0.06, 3.15, 1.93, 0.94, -3.48, -0.31, 0.15),
    "replace": (-0.39, -0.05, 1.06, 0.4, -0.47, 0.85, -0.86, 0.64),
    "replacing": (1.71, 1.19, -0.89, 1.94, 0.67, 0.31, -0.93, 0.98),
    "resume": (-2.08, 0.39, 2.3, 1.3, 0.34, 0.8, 0.04, 2.39),
    "stale": (-1.01, 0.71, 0.02, 0.16, -0.7, -2.48, 0.61, -0.24),
}

_LOG = tuple(math.log2(1 + n) for n in range(64))

Tail = tuple[int, ...]  # fingerprints of the last 1, 2, ... DEPTH tokens of a text


class Match(NamedTuple):
    """The longest known end of a text. `share` of its `times` occurrences continued with the same token as the latest;
    that token is at position `end`. A tuple, as many are made in every pass."""

    length: int
    end: int
    times: int
    share: float


def _longer(tail: Tail, tokens: Iterable[int]) -> Tail:
    """The tail of the text with some further tokens."""
    for token in tokens:
        tail = tuple([(shorter * _BASE + token + 1) & _MASK for shorter in (0, *tail[: DEPTH - 1])])
    return tail


class NgramIndex:
    """All n-grams of up to DEPTH tokens of a growing text that are followed by something.

    One dictionary from fingerprint to the position after the latest occurrence and the number of occurrences. A token
    costs DEPTH look-ups and at most DEPTH entries, less than 2 kB. Two n-grams of the same fingerprint, about one pair
    in 10^18, are mistaken for each other, which causes no more than a wrong guess.
    """

    __slots__ = ("_entries", "tail", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.tail: Tail = ()
        self._entries: dict[int, int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        if len(tokens) >= MANY:
            self._extend_at_once(tokens)
            return
        entries, known = self._entries, self._entries.get
        for position, token in enumerate(tokens, len(self.tokens)):
            for fingerprint in self.tail:
                entries[fingerprint] = (known(fingerprint, 0) >> 32) + 1 << 32 | position
            self.tail = _longer(self.tail, (token,))
        self.tokens += tokens

    def _extend_at_once(self, tokens: Sequence[int]) -> None:
        """As `extend`, in half the time, for prompts, which are long."""
        added, num_known = np.array(tokens, np.uint64) + np.uint64(1), len(self.tokens)
        before = np.zeros(len(tokens), np.uint64)  # of the n-grams of each length that each token follows
        tail: list[int] = []
        for length, known in enumerate((*self.tail, *[0] * DEPTH)[:DEPTH], 1):
            ends = (before * np.uint64(_BASE) + added) & np.uint64(_MASK)  # of a product modulo 2^64, the low bits
            before = np.concatenate(([np.uint64(known)], ends[:-1]))
            missing = max(0, length - num_known)  # so many tokens do not have so many before them
            self._count(before[missing:], num_known + missing)
            if num_known + len(tokens) >= length:
                tail.append(int(ends[-1]))
        self.tail = tuple(tail)
        self.tokens += tokens

    def _count(self, fingerprints: NDArray[np.uint64], position: int) -> None:
        """Enter n-grams that are followed by the tokens from `position` on."""
        order = np.argsort(fingerprints, kind="stable")
        same = fingerprints[order]
        latest = np.flatnonzero(np.append(same[1:] != same[:-1], True))
        times = np.diff(latest, prepend=-1)
        found = (times << 32) + order[latest] + position
        entries, known, keys = self._entries, self._entries.get, same[latest].tolist()
        entries.update(
            (key, (known(key, 0) & ~_POSITION) + entry) for key, entry in zip(keys, found.tolist(), strict=True)
        )

    def match(self, tail: Tail) -> Match | None:
        """The longest n-gram of a tail that occurred with a successor, or None."""
        known = self._entries.get
        for length in range(len(tail), 0, -1):
            entry = known(tail[length - 1])
            if entry is not None:
                end = entry & _POSITION
                counted = tail[min(length, DEPTH - 1) - 1]  # the longest has no entry with its successor
                total = self._entries[counted] >> 32
                followed = (counted * _BASE + self.tokens[end] + 1) & _MASK  # as `_longer` would have it
                same = known(followed, 0) >> 32
                return Match(length, end, entry >> 32, (same + 1) / (total + 2))
        return None


class _Copy(NamedTuple):
    """A place that is being copied from."""

    source: int  # position of the token that comes next
    run: int  # tokens copied so far
    kind: str  # "copy"; "resume", taken up again after an edit; "follow", begun in this draft
    instead: tuple[int, ...] = ()  # rest of a replacement, to be written before copying goes on

    def next(self) -> _Copy:
        return _Copy(self.source + 1, self.run + 1, self.kind)


class _Candidate(NamedTuple):
    token: int
    features: Features
    then: _Copy  # what is copied after it


class _Place(NamedTuple):
    """The evidence for or against any token after a text, as numbers of about the size of 1.

    expected: the token that followed the longest n-gram, if there was one.
    length, odds, times: of that n-gram (see `Match`).
    risk: how often this answer has left what it copied.
    depth: tokens of the draft so far.
    """

    expected: int | None
    length: float
    odds: float
    times: float
    risk: float
    depth: float

    def agrees(self, token: int) -> float:
        """Whether the longest n-gram goes on with a token: 1 or -1, and 0 if there is none."""
        return 0.0 if self.expected is None else 1.0 if token == self.expected else -1.0

    def candidate(self, token: int, kind: str, run: int, agreed: float, then: _Copy) -> _Candidate:
        """A candidate with its features in the order of the weights in `PRIORS`."""
        _, length, odds, times, risk, depth = self
        features = (_LOG[min(run, 31)] / 4, length, odds, agreed, times, risk, depth)
        return _Candidate(token, Features(kind, features), then)


class _Break(NamedTuple):
    source: int  # what would have been copied
    at: int  # where in the text something else was written


class _Trail:
    """One request: the index of its text, and the copy that its answer is in the middle of.

    When a long copy breaks off, as at a name that is being changed, its place is remembered and the copy is taken up
    again at the nearest later token that was just written. What stood in between on both sides is learnt as a
    replacement, for the next time that the copy comes to the same tokens. All of this follows from the text alone,
    however it was divided into passes.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self.index = NgramIndex()
        self._num_prompt_tokens = num_prompt_tokens
        self._copy: _Copy | None = None
        self._break: _Break | None = None
        self._replacements: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
        self._num_copied = self._num_breaks = 0

    def extend(self, tokens: Sequence[int]) -> None:
        num_left = max(0, self._num_prompt_tokens - len(self.index.tokens))  # of the prompt, which copies nothing
        self.index.extend(tokens[:num_left])
        for token in tokens[num_left:]:
            self._follow(token)
            self.index.extend((token,))

    def propose(self, acceptance: AcceptanceModel, ahead: Sequence[int], stop: frozenset[int]) -> Iterator[_Candidate]:
        """The likeliest candidate for each next token, on the condition that those before it are right."""
        copy, tail, depth = self._copy, _longer(self.index.tail, ahead), len(ahead)
        for token in ahead:
            if copy is not None:
                copy = copy.next() if self.index.tokens[copy.source : copy.source + 1] == [token] else None
        while candidates := self.candidates(copy, tail, depth):
            best = candidates[0] if len(candidates) == 1 else acceptance.likeliest(candidates)[0]
            yield best
            if best.token in stop:
                return
            copy, tail, depth = best.then, _longer(tail, (best.token,)), depth + 1

    def candidates(self, copy: _Copy | None, tail: Tail, depth: int) -> list[_Candidate]:
        """What may come next, and the evidence for each. A token on which the copy and the longest n-gram agree comes
        once."""
        tokens, match = self.index.tokens, self.index.match(tail)
        place = self._place(match, depth)
        if copy is not None and copy.instead:
            token, *rest = copy.instead
            then = copy._replace(instead=tuple(rest))
            return [place.candidate(token, "replacing", copy.run, place.agrees(token), then)]
        found: list[_Candidate] = []
        if copy is not None and copy.source < len(tokens):
            agreed = place.agrees(tokens[copy.source])
            found = self._offers(place, copy.source, copy.kind, copy.run, agreed, copy.next())
        if match is not None and (len(found) != 1 or found[0].token != place.expected):
            then = _Copy(match.end + 1, match.length + 1, "follow")
            agreed = place.agrees(found[0].token) if found else 0.0
            found += self._offers(place, match.end, "match", match.length, agreed, then)
        return found

    def _offers(self, place: _Place, source: int, kind: str, run: int, agreed: float, then: _Copy) -> list[_Candidate]:
        """The token at `source`, and what replaced it before."""
        token, replacement = self.index.tokens[source], self._replacement(source)
        if replacement is None:
            return [place.candidate(token, kind, run, agreed, then)]
        old, new = replacement
        instead = then._replace(source=source + len(old), instead=new[1:])
        return [
            place.candidate(token, "stale", run, agreed, then),
            place.candidate(new[0], "replace", run, place.agrees(new[0]), instead),
        ]

    def _place(self, match: Match | None, depth: int) -> _Place:
        risk = (self._num_breaks + 0.5) / (self._num_copied + self._num_breaks + 10)
        risk, log_depth = math.log(risk / (1 - risk)) + 3, _LOG[min(depth, 63)] / 4
        if match is None:
            return _Place(None, 0.0, 0.0, 0.0, risk, log_depth)
        odds, times = math.log(match.share / (1 - match.share)) / 2, _LOG[min(match.times, 63)] / 4
        return _Place(self.index.tokens[match.end], match.length / 8, odds, times, risk, log_depth)

    def _follow(self, token: int) -> None:
        """Move the copy over the next token of the answer, or look for one that this token belongs to."""
        tokens, here = self.index.tokens, len(self.index.tokens)
        if self._copy is not None:
            if self._copy.source < here and tokens[self._copy.source] == token:
                self._copy = self._copy.next()
                self._num_copied += 1
                self._settle()
                return
            self._num_breaks += 1
            if self._copy.run >= (WORTH_RESUMING if self._break is None else SETTLED):
                self._break = _Break(self._copy.source, here)
        self._copy = self._resumed(token) or self._matched(token)

    def _resumed(self, token: int) -> _Copy | None:
        """The broken copy, taken up again at the nearest place that goes on with this token."""
        if self._break is None:
            return None
        here = len(self.index.tokens)
        if here - self._break.at > REACH:
            self._break = None
            return None
        first = self._break.source
        ahead = self.index.tokens[first : first + REACH]
        return _Copy(first + ahead.index(token) + 1, 1, "resume") if token in ahead else None

    def _matched(self, token: int) -> _Copy | None:
        match = self.index.match(self.index.tail)
        if match is None or self.index.tokens[match.end] != token:
            return None
        return _Copy(match.end + 1, match.length, "copy")

    def _settle(self) -> None:
        """After two resumed tokens, store the replacement. A long new copy discards the old position."""
        assert self._copy is not None
        if self._break is not None and self._copy.kind == "resume" and self._copy.run == 2:
            # Two tokens are copied again, the second of which is not in the index yet.
            self._learn(self._break.source, self._copy.source - 2, self._break.at, len(self.index.tokens) - 1)
            self._copy = _Copy(self._copy.source, WORTH_RESUMING, "copy")
            self._break = None
        elif self._copy.kind == "copy" and self._copy.run >= SETTLED:
            self._break = None

    def _learn(self, old_begin: int, old_end: int, new_begin: int, new_end: int) -> None:
        old = tuple(self.index.tokens[old_begin:old_end])
        new = tuple(self.index.tokens[new_begin:new_end])
        if old and new and max(len(old), len(new)) <= LONGEST_REPLACEMENT:
            known = self._replacements.setdefault(old[0], [])
            if (old, new) in known:
                known.remove((old, new))
            known.insert(0, (old, new))
            del known[MOST_REPLACEMENTS:]

    def _replacement(self, source: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The latest replacement of what the copy comes to."""
        tokens = self.index.tokens
        for old, new in self._replacements.get(tokens[source], ()):
            if tuple(tokens[source : source + len(old)]) == old:
                return old, new
        return None


class Suffix:
    """Continues the copy that the answer is making, and otherwise continues as the longest known n-gram last did.

    It reads prompt, answer and earlier turns alike, since all of them are in the request's tokens. It yields the
    candidate that `acceptance` rates highest. Outcomes must be reported to the same model. See `NgramIndex` for time
    and memory per token. Related to prompt lookup decoding (A. Saxena, 2023), LLMA (arXiv 2304.04487) and
    SuffixDecoding (arXiv 2411.04975).
    """

    name = "suffix"

    def __init__(self, acceptance: AcceptanceModel) -> None:
        self._acceptance = acceptance
        self._trails: dict[Request, _Trail] = {}

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        self.index(request)
        for candidate in self._trails[request].propose(self._acceptance, ahead, request.config.stop_ids):
            source = EARLIER_TURN if candidate.then.source <= request.num_earlier_tokens else self.name
            yield Proposal(candidate.token, source, candidate.features)

    def num_unindexed(self, request: Request) -> int:
        trail = self._trails.get(request)
        return len(request.tokens) - (0 if trail is None else len(trail.index.tokens))

    def index(self, request: Request) -> None:
        trail = self._trails.get(request)
        if trail is None:
            trail = self._trails[request] = _Trail(request.num_prompt_tokens)
        trail.extend(request.tokens[len(trail.index.tokens) :])

    def release(self, request: Request) -> None:
        self._trails.pop(request, None)
