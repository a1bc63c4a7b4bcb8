"""ExpectedAcceptance: how often a model that drafts is right, as far as can be told before it is asked."""

from __future__ import annotations

from collections import Counter

from .draft import Kind

HOPED = 0.8  # of a model that has not been asked yet: only asking finds out whether it pays
DOUBTED = 4  # proposals that HOPED counts for
FORGET = 0.05  # least weight of the newest proposal in what is expected of the next one
RECOVER = 0.0003  # how fast the expectation returns to HOPED while the model is not asked


class ExpectedAcceptance:
    """The probability that the next proposal of a model is accepted, by the mode and conditions of requests: in modes
    with text drafters a model is asked where these do not know what follows, and there it is right less often.

    known: this probability for each kind for which the model was asked.
    """

    def __init__(self) -> None:
        self.known: dict[Kind, float] = {}
        self._num_observed: Counter[Kind] = Counter()

    def of(self, kind: Kind) -> float:
        """What is expected for a kind; at first, what is expected for the nearest cooler one of its mode."""
        if kind in self.known:
            return self.known[kind]
        mode, conditions = kind
        cooler = conditions.nearest_cooler(known for its_mode, known in self.known if its_mode == mode)
        return HOPED if cooler is None else self.known[mode, cooler]

    def observe(self, kind: Kind, probability: float) -> None:
        """Learn from a proposal, which is accepted with this probability."""
        expected = self.of(kind)
        self._num_observed[kind] += 1
        weight = max(FORGET, 1 / (DOUBTED + self._num_observed[kind]))
        self.known[kind] = expected + weight * (probability - expected)

    def forget(self, passes: int) -> None:
        """Return a little towards HOPED, after passes in which the model was not asked."""
        for kind in self.known:
            self.known[kind] += passes * RECOVER * (HOPED - self.known[kind])
