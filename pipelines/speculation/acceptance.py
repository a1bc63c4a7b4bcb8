"""AcceptanceModel: the probability that the target accepts a proposed token."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from ..config import EXACT, GenerationConfig

BIAS_VARIANCE, WEIGHT_VARIANCE = 0.5, 0.03  # of a weight with a prior
LEAST_VARIANCE = 0.02  # keeps weights moving, so that probabilities follow a change of text
UNKNOWN_VARIANCE = 1.0  # of a weight without a prior
FLATTEST = 15.0  # log-odds are clipped here
COLDEST, HOTTEST = 0.5, 4.0  # temperatures beyond these are treated like them
# What is added to the log-odds of proposals from texts before anything is known, by the rounded binary logarithm of the
# temperature. Measured with two models: nothing up to a temperature of 1.4, while at 3 hardly any copy was accepted.
FLATTENED: Mapping[float, float] = {1: -0.9, 2: -4.0}


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
        """The known conditions with the same rule and the next lower temperature. Hotter ones would predict that
        nothing is accepted, and then nothing would be drafted or learnt."""
        cooler = (each for each in known if each.rule == self.rule and each.log_temperature < self.log_temperature)
        return max(cooler, default=None)


GREEDY = Conditions()


class Features(NamedTuple):
    """What a probability is predicted from: the kind of proposal, and numbers of about the size of 1 that describe it.

    A tuple, since many are made in every pass and no other object is made faster.
    """

    kind: str
    values: tuple[float, ...] = ()


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
        log_odds = sum(map(operator.mul, (1.0, *values), self.means))
        return 1 / (1 + math.exp(-min(FLATTEST, max(-FLATTEST, log_odds))))

    def update(self, values: Sequence[float], accepted: bool) -> None:
        probability = self.probability(values)
        information = max(probability * (1 - probability), 1e-4)
        means, variances, inputs = self.means, self.variances, (1.0, *values)
        steps = [variance * value for variance, value in zip(variances, inputs, strict=True)]
        spread = 0.0
        for step, value in zip(steps, inputs, strict=True):
            spread += step * value
        gain = 1 / (1 + information * spread)
        shift, narrowing = gain * (accepted - probability), gain * information
        for i, step in enumerate(steps):
            means[i] += step * shift
            variance = variances[i] - step * step * narrowing
            variances[i] = variance if variance > LEAST_VARIANCE else LEAST_VARIANCE


class AcceptanceModel:
    """One logistic regression for each kind of proposal, updated online with what the target accepts.

    An outcome updates the weights by Bayes' rule under a Gaussian with diagonal covariance (assumed-density filtering;
    M. Opper, A Bayesian approach to on-line learning, 1998), so that learning is fast at first, slows down, and never
    stops. `priors` gives the initial weights of a kind, bias first. A kind without a prior starts at even odds and
    learns faster. Each `Conditions` has weights of its own, which start as those of the nearest cooler conditions. So
    what a lossy rule accepts does not disturb exact requests, and hot requests, for which hardly anything can be
    drafted, do not disturb others. Proposals of the kinds in `texts` do not depend on the temperature, so their
    log-odds start lower where it is high; a model draws its proposals as the target does.

    A probability is conditional on all earlier proposals being accepted, so only outcomes up to the first rejection may
    be observed: nothing after it was tested.
    """

    def __init__(self, priors: Mapping[str, Sequence[float]] | None = None, texts: Collection[str] = ()) -> None:
        self._priors = dict(priors or {})
        self._texts = frozenset(texts)
        self._regressions: dict[Conditions, dict[str, _LogisticRegression]] = {}  # by kind

    def probability(self, features: Features, conditions: Conditions = GREEDY) -> float:
        """The probability that a proposal is accepted under these conditions if all before it are."""
        return self._regression(features, conditions).probability(features.values)

    def likeliest(self, candidates: Sequence[C], conditions: Conditions = GREEDY) -> tuple[C, float]:
        """The candidate with the highest probability, the first of equal ones, and that probability."""
        best, highest = candidates[0], self.probability(candidates[0].features, conditions)
        for candidate in candidates[1:]:
            if (probability := self.probability(candidate.features, conditions)) > highest:
                best, highest = candidate, probability
        return best, highest

    def log_odds(self, features: Features, conditions: Conditions = GREEDY) -> float:
        """The probability p as log(p / (1 - p))."""
        probability = min(max(self.probability(features, conditions), 1e-6), 1 - 1e-6)
        return math.log(probability / (1 - probability))

    def observe(self, features: Features, accepted: bool, conditions: Conditions = GREEDY) -> None:
        """Update the model with the target's verdict on a proposal."""
        self._regression(features, conditions).update(features.values, accepted)

    def _regression(self, features: Features, conditions: Conditions) -> _LogisticRegression:
        known = self._regressions.get(conditions)
        regression = None if known is None else known.get(features.kind)
        return self._begun(features, conditions) if regression is None else regression

    def _begun(self, features: Features, conditions: Conditions) -> _LogisticRegression:
        """A regression for a kind that is new under these conditions."""
        kind = features.kind
        cooler = conditions.nearest_cooler(each for each, known in self._regressions.items() if kind in known)
        prior = self._priors.get(kind) if cooler is None else self._regressions[cooler][kind].means
        if prior is None:
            regression = _LogisticRegression.unknown(len(features.values))
        else:
            regression = _LogisticRegression.around(prior)
        if kind in self._texts:
            counted = 0.0 if cooler is None else FLATTENED.get(cooler.log_temperature, 0.0)
            regression.means[0] += FLATTENED.get(conditions.log_temperature, 0.0) - counted
        self._regressions.setdefault(conditions, {})[kind] = regression
        return regression
