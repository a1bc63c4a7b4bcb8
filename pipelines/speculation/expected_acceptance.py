"""ExpectedAcceptance: how often a model that drafts is right, as far as can be told before it is asked."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .draft import Kind

HOPED = 0.8  # what is expected of a model that has not been asked yet: only asking shows whether it pays
DOUBTED = 4  # proposals that HOPED counts for
ALIKE = 0.5  # weight of a first proposal in what is expected of following ones, and the reverse
FORGET = 0.05  # least weight of the newest proposal in what is expected of the next one
RECOVER = 0.0003  # how fast the expectation returns to HOPED while the model is not asked


class Expected(NamedTuple):
    """The probability that a proposal of a model is accepted: of the first in a draft, and of each `following` one. A
    model continues a draft only while it is confident, so following proposals are right more often. Where it was not,
    its next proposal is the first of another draft."""

    first: float
    following: float

    def towards(self, other: Expected, weight: float) -> Expected:
        """This with the share `weight` of the way to the other covered."""
        return Expected(*(own + weight * (its - own) for own, its in zip(self, other, strict=True)))


class ExpectedAcceptance:
    """What is expected of a model by the mode and conditions of requests: in modes with text drafters it is asked where
    these do not know what follows, and there it is right less often.

    known: for each kind for which the model was asked.
    """

    def __init__(self) -> None:
        self.known: dict[Kind, Expected] = {}
        self._num_observed: Counter[tuple[Kind, bool]] = Counter()

    def of(self, kind: Kind) -> Expected:
        """What is expected for a kind; at first, what is expected for the nearest cooler one of its mode."""
        if kind in self.known:
            return self.known[kind]
        mode, conditions = kind
        cooler = conditions.nearest_cooler(known for its_mode, known in self.known if its_mode == mode)
        return Expected(HOPED, HOPED) if cooler is None else self.known[mode, cooler]

    def observe(self, kind: Kind, probability: float, is_first: bool) -> None:
        """Learn from a proposal that is accepted with this probability. While little is known, a first proposal also
        counts for the following ones, and the reverse."""
        expected = self.of(kind)
        self._num_observed[kind, is_first] += 1
        own, other = (1 / (DOUBTED + self._num_observed[kind, place]) for place in (is_first, not is_first))
        own, other = max(FORGET, own), ALIKE * other
        first, following = (own, other) if is_first else (other, own)
        self.known[kind] = Expected(
            expected.first + first * (probability - expected.first),
            expected.following + following * (probability - expected.following),
        )

    def forget(self, passes: int) -> None:
        """Return a little towards HOPED, after passes in which the model was not asked."""
        for kind in self.known:
            self.known[kind] = self.known[kind].towards(Expected(HOPED, HOPED), passes * RECOVER)
