"""Calibration: how likely is a proposed token to be kept?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol, TypeVar

BIAS_VARIANCE, WEIGHT_VARIANCE = 0.5, 0.03  # how far from its prior a weight may be expected to lie, squared
LEAST_VARIANCE = 0.02  # what a weight stays free to move by, so that the estimates follow a change of text
UNKNOWN_VARIANCE = 1.0  # for kinds without a prior
FLATTEST = 15.0  # log-odds are cut here


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a proposal: the kind of situation, and numbers of about the size of 1 that describe it."""

    kind: str
    features: tuple[float, ...] = ()


class _Candidate(Protocol):
    @property
    def evidence(self) -> Evidence: ...


C = TypeVar("C", bound=_Candidate)


@dataclass(slots=True)
class _Belief:
    """Weights of one kind, the bias first: independent Gaussians."""

    means: list[float]
    variances: list[float]

    @classmethod
    def around(cls, prior: SequenceOf[float]) -> _Belief:
        return cls(list(prior), [BIAS_VARIANCE, *[WEIGHT_VARIANCE] * (len(prior) - 1)])

    @classmethod
    def unknown(cls, num_features: int) -> _Belief:
        return cls([0.0] * (1 + num_features), [UNKNOWN_VARIANCE] * (1 + num_features))

    def estimate(self, features: SequenceOf[float]) -> float:
        means = self.means
        odds = means[0]
        for i, value in enumerate(features, 1):
            odds += means[i] * value
        return 1 / (1 + math.exp(-min(FLATTEST, max(-FLATTEST, odds))))

    def learn(self, features: SequenceOf[float], kept: bool) -> None:
        estimate = self.estimate(features)
        information = max(estimate * (1 - estimate), 1e-4)
        inputs = (1.0, *features)
        spread = sum(variance * value * value for variance, value in zip(self.variances, inputs, strict=True))
        gain = 1 / (1 + information * spread)
        for i, value in enumerate(inputs):
            step = self.variances[i] * value
            self.means[i] += step * gain * (kept - estimate)
            self.variances[i] = max(LEAST_VARIANCE, self.variances[i] - step * step * gain * information)


class Calibration:
    """A logistic regression for each kind of evidence, learnt while running from what the target kept.

    Each outcome moves the weights as Bayes' rule would, with a Gaussian belief whose covariance is kept diagonal
    (assumed-density filtering; M. Opper, A Bayesian approach to on-line learning, 1998): fast where little is known,
    slower later, and never not at all. `priors` gives for a kind the weights to begin with, bias first; a kind that is
    not in it begins with even odds and learns faster. An estimate is conditional on the proposals before it: tell
    outcomes only up to the first rejection, since nothing behind it was tested.
    """

    def __init__(self, priors: Mapping[str, SequenceOf[float]] | None = None) -> None:
        self._beliefs = {kind: _Belief.around(prior) for kind, prior in (priors or {}).items()}

    def estimate(self, evidence: Evidence) -> float:
        """Probability that a proposal is kept if all before it are."""
        return self._belief(evidence).estimate(evidence.features)

    def likeliest(self, candidates: SequenceOf[C]) -> C:
        """The one whose `evidence` gives it the best chance; the first of equal ones."""
        if len(candidates) == 1:
            return candidates[0]
        return max(candidates, key=lambda candidate: self.estimate(candidate.evidence))

    def log_odds(self, evidence: Evidence) -> float:
        """The same as log p / (1 - p)."""
        estimate = min(max(self.estimate(evidence), 1e-6), 1 - 1e-6)
        return math.log(estimate / (1 - estimate))

    def observe(self, evidence: Evidence, kept: bool) -> None:
        """Learn from a proposal that the target has judged."""
        self._belief(evidence).learn(evidence.features, kept)

    def _belief(self, evidence: Evidence) -> _Belief:
        belief = self._beliefs.get(evidence.kind)
        if belief is None:
            belief = self._beliefs[evidence.kind] = _Belief.unknown(len(evidence.features))
        return belief
