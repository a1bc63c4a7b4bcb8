"""AcceptanceModel: the probability that the target accepts a proposed token."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from ..config import EXACT, GenerationConfig

BIAS_VARIANCE, WEIGHT_VARIANCE = 0.5, 0.03  # of a weight with a prior
LEAST_VARIANCE = 0.02  # keeps weights moving, so that probabilities follow a change of text
UNKNOWN_VARIANCE = 1.0  # of a weight without a prior
FLATTEST = 15.0  # log-odds are clipped here
COLDEST, HOTTEST = 0.5, 4.0  # temperatures below and above are taken to be alike


class Conditions(NamedTuple):
    """How a request chooses its tokens: its acceptance rule, and the binary logarithm of its temperature, rounded. In
    greedy decoding that is minus infinity."""

    rule: str = EXACT
    log_temperature: float = -math.inf

    @classmethod
    def of(cls, config: GenerationConfig) -> Conditions:
        if config.greedy:
            return cls(config.acceptance)
        return cls(config.acceptance, round(math.log2(min(HOTTEST, max(COLDEST, config.temperature)))))

    def nearest_cooler(self, known: Iterable[Conditions]) -> Conditions | None:
        """Those of the same rule whose temperature is the next below. Hotter ones would say that nothing is accepted,
        and what is not drafted is not learnt."""
        cooler = (each for each in known if each.rule == self.rule and each.log_temperature < self.log_temperature)
        return max(cooler, default=None)


GREEDY = Conditions()


@dataclass(frozen=True, slots=True)
class Features:
    """What a probability is predicted from: the kind of proposal, numbers of about the size of 1 that describe it, and
    the conditions under which it is accepted."""

    kind: str
    values: tuple[float, ...] = ()
    conditions: Conditions = GREEDY


class _Candidate(Protocol):
    @property
    def features(self) -> Features: ...


C = TypeVar("C", bound=_Candidate)


@dataclass(slots=True)
class _LogisticRegression:
    """Independent Gaussians over the weights of one kind, the bias first."""

    means: list[float]
    variances: list[float]

    @classmethod
    def around(cls, prior: Sequence[float]) -> _LogisticRegression:
        return cls(list(prior), [BIAS_VARIANCE, *[WEIGHT_VARIANCE] * (len(prior) - 1)])

    @classmethod
    def unknown(cls, num_features: int) -> _LogisticRegression:
        return cls([0.0] * (1 + num_features), [UNKNOWN_VARIANCE] * (1 + num_features))

    def probability(self, values: Sequence[float]) -> float:
        means = self.means
        log_odds = means[0]
        for i, value in enumerate(values, 1):
            log_odds += means[i] * value
        return 1 / (1 + math.exp(-min(FLATTEST, max(-FLATTEST, log_odds))))

    def update(self, values: Sequence[float], accepted: bool) -> None:
        probability = self.probability(values)
        information = max(probability * (1 - probability), 1e-4)
        inputs = (1.0, *values)
        spread = sum(variance * value * value for variance, value in zip(self.variances, inputs, strict=True))
        gain = 1 / (1 + information * spread)
        for i, value in enumerate(inputs):
            step = self.variances[i] * value
            self.means[i] += step * gain * (accepted - probability)
            self.variances[i] = max(LEAST_VARIANCE, self.variances[i] - step * step * gain * information)


class AcceptanceModel:
    """One logistic regression for each kind of proposal, updated online with what the target accepts.

    An outcome updates the weights by Bayes' rule under a Gaussian with diagonal covariance (assumed-density filtering;
    M. Opper, A Bayesian approach to on-line learning, 1998), so that learning is fast at first, slows down, and never
    stops. `priors` gives the initial weights of a kind, bias first. A kind without a prior starts at even odds and
    learns faster. Conditions have weights of their own, which begin with those of the nearest cooler ones: what a lossy
    rule accepts does not disturb exact requests, nor hot requests, for which hardly anything can be drafted, others.

    Probabilities are conditional on all proposals before it being accepted, so outcomes must be observed up to the
    first rejection only: nothing behind it was tested.
    """

    def __init__(self, priors: Mapping[str, Sequence[float]] | None = None) -> None:
        self._priors = dict(priors or {})
        self._regressions: dict[str, dict[Conditions, _LogisticRegression]] = {}

    def probability(self, features: Features) -> float:
        """The probability that a proposal is accepted if all before it are."""
        return self._regression(features).probability(features.values)

    def likeliest(self, candidates: Sequence[C]) -> C:
        """The candidate with the highest probability; the first of equal ones."""
        if len(candidates) == 1:
            return candidates[0]
        return max(candidates, key=lambda candidate: self.probability(candidate.features))

    def log_odds(self, features: Features) -> float:
        """The probability p as log(p / (1 - p))."""
        probability = min(max(self.probability(features), 1e-6), 1 - 1e-6)
        return math.log(probability / (1 - probability))

    def observe(self, features: Features, accepted: bool) -> None:
        """Update the model with the target's verdict on a proposal."""
        self._regression(features).update(features.values, accepted)

    def _regression(self, features: Features) -> _LogisticRegression:
        known = self._regressions.setdefault(features.kind, {})
        regression = known.get(features.conditions)
        if regression is None:
            cooler = features.conditions.nearest_cooler(known)
            prior = self._priors.get(features.kind) if cooler is None else known[cooler].means
            if prior is None:
                regression = _LogisticRegression.unknown(len(features.values))
            else:
                regression = _LogisticRegression.around(prior)
            known[features.conditions] = regression
        return regression
