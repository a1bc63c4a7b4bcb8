"""Sampling: pure functions from a row of logits to the token for (seed, answer, position), without any state.

The token at position t is `argmax over v of (score(v) + Gumbel(seed, answer, t, v))`, where the scores are the
processed logits; by the Gumbel-max identity this samples from softmax(score) (Maddison et al., arXiv 1411.0030). The
noise is a hash of its arguments, so the token does not depend on how position t was reached.

Standard Gumbel noise is the negative logarithm of standard exponential noise. Ids come in groups of GROUP_SIZE. One
hash gives the smallest exponential of a group and the id that has it; as exponentials are memoryless, every other id
has a fresh one on top of that. So one hash bounds the noise of a whole group, and in a large vocabulary only the few
groups that could win are computed (the top-down construction of the same paper).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..config import GenerationConfig
from ..errors import BrokenLogits

Logits = NDArray[np.float32]  # [vocabulary]
Scores = NDArray[np.float64]  # [vocabulary] or [candidates]
S = TypeVar("S", Logits, Scores, Logits | Scores)
Times = NDArray[np.float64]  # [candidates] or [groups], exponential noise
Ids = NDArray[np.int64]  # [candidates], ascending
Hashes = NDArray[np.uint64]  # [candidates]

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
UNIT = 2.0**-52
GROUP_SIZE = 64  # neighbouring ids
FEW_GROUPS = 8  # groups to compute first
# How far below the best score to look for the likeliest tokens, before all are considered.
REACHES = (8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
ROUNDING = 1e-9  # above the rounding errors of noise and scores
ACCEPTING, DRAFTING = 1, 2  # streams of noise in addition to the one that chooses the target's tokens


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Probabilities by token, 0 for all others.

    ids: int64 [candidates], ascending.
    probabilities: float64 [candidates], with a sum of 1.
    """

    ids: Ids
    probabilities: Scores

    def of(self, ids: Ids) -> Scores:
        """The probability of each id."""
        places = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return np.where(self.ids[places] == ids, self.probabilities[places], 0.0)

    def of_token(self, token: int) -> float:
        return float(self.of(np.array([token]))[0])

    @property
    def likeliest(self) -> int:
        """The likeliest token; of equally likely ones, the lowest id."""
        return int(self.ids[np.argmax(self.probabilities)])


def choose_token(
    logits: Logits, tokens: Sequence[int], num_prompt_tokens: int, config: GenerationConfig, answer: int = 0
) -> int:
    """The token that follows `tokens`, the prompt and the answer so far. A tie goes to the lowest id.

    Raises BrokenLogits.
    """
    scores = penalized(logits, tokens, num_prompt_tokens, config)
    if config.greedy:
        token = int(scores.argmax())  # of a NaN, if there is one
        _require_finite(float(scores[token]))
        return token
    sound(scores)
    key = _key(config.rng_seed, answer, len(tokens))
    if config.top_k is None and config.top_p == 1.0 and config.min_p == 0.0:
        return _winner_of_all(scores, config.temperature, key)
    ids, scores = candidates(scores, config)
    return int(ids[np.argmax(scores - np.log(_exponentials(key, ids)))])


def sound(scores: S) -> S:
    """The scores unchanged, if a token can be chosen from them; otherwise BrokenLogits is raised. The maximum is NaN if
    any score is."""
    _require_finite(float(scores.max()))
    return scores


def _require_finite(highest: float) -> None:
    if math.isfinite(highest):
        return
    if highest == -math.inf:
        raise BrokenLogits(
            "No token can follow, as the model gives every allowed one a probability of 0 (a logit of -inf): ask for "
            "less with structured_output_config, stop_token_ids and min_new_tokens, or export the pair again."
        )
    raise BrokenLogits(
        f"The model's logits contain {highest}, so no token can be chosen: load the pair with "
        "INFERENCE_PRECISION_HINT='f32', or export it again."
    )


def restricted(logits: Logits, allowed: NDArray[np.bool_] | None) -> Logits:
    """Logits of the `allowed` tokens; those of all others, and of ids beyond `allowed`, are -inf."""
    if allowed is None:
        return logits
    size = min(logits.size, allowed.size)
    left = np.full_like(logits, -np.inf)
    np.copyto(left[:size], logits[:size], where=allowed[:size])
    return left


def penalized(
    logits: Logits, tokens: Sequence[int], num_prompt_tokens: int, config: GenerationConfig
) -> Logits | Scores:
    """Logits after penalties and bias, float64 [vocabulary]; unchanged if the configuration has neither.

    Repetition divides positive and multiplies negative logits of every token in prompt and answer (CTRL, arXiv
    1909.05858); presence and frequency subtract once, or once for each occurrence, for tokens of the answer. Last
    comes the bias, so that no penalty scales it. Tokens that end the answer are impossible before `min_new_tokens`.
    """
    if not config.penalizes:
        return logits
    scores = logits.astype(np.float64)
    answer = tokens[num_prompt_tokens:]
    if config.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(tokens, np.int64))
        scores[seen] *= np.where(scores[seen] > 0, 1 / config.repetition_penalty, config.repetition_penalty)
    if answer and (config.presence_penalty or config.frequency_penalty):
        seen, counts = np.unique(np.asarray(answer, np.int64), return_counts=True)
        scores[seen] -= config.presence_penalty + config.frequency_penalty * counts
    for token, bias in config.logit_bias:
        if token < scores.size:
            scores[token] += bias
    if len(answer) < config.min_new_tokens:
        scores[[token for token in config.stop_ids if token < scores.size]] = -np.inf
    return scores


def candidates(scores: Logits | Scores, config: GenerationConfig) -> tuple[Ids, Scores]:
    """The ids (ascending) that remain after top-k, top-p and min-p, in this order, at least one, and their scores
    divided by the temperature.

    At equal scores the lower id is kept. Top-p keeps the smallest set of the most probable tokens whose probabilities
    add up to `top_p` (Holtzman et al., arXiv 1904.09751); min-p keeps those at least `min_p` times as probable as the
    best (arXiv 2407.01082).
    """
    best, top_k = scores.max(), config.top_k
    if top_k is None:
        ids = np.flatnonzero(scores > -np.inf)
    else:
        ids = _likeliest(scores, lambda ids: ids.size >= top_k)
        ids = _top(ids, scores[ids], top_k)
    if ids.size < scores.size:
        scores = scores[ids]
    scores = _tempered(scores, best, config.temperature)
    if config.top_p < 1.0:
        left = _nucleus(scores, config.top_p)
        ids, scores = ids[left], scores[left]
    if config.min_p > 0.0:
        left = np.flatnonzero(scores >= np.log(config.min_p))
        ids, scores = ids[left], scores[left]
    return ids, scores


def distribution(
    logits: Logits, tokens: Sequence[int], num_prompt_tokens: int, config: GenerationConfig
) -> Distribution:
    """What `choose_token` samples from. For greedy decoding, the softmax of the processed logits at temperature 1.

    Raises BrokenLogits.
    """
    scores = sound(penalized(logits, tokens, num_prompt_tokens, config))
    if config.greedy:
        ids = np.flatnonzero(scores > -np.inf)
        odds = np.exp(_tempered(scores[ids], scores.max(), 1.0))
    else:
        ids, left = candidates(scores, config)
        odds = np.exp(left)
    return Distribution(ids, odds / odds.sum())


def sample(source: Distribution, config: GenerationConfig, answer: int, position: int) -> int:
    """The token at a position, drawn with the noise of `choose_token`."""
    return _drawn(source, _key(config.rng_seed, answer, position))


def sample_draft(source: Distribution, config: GenerationConfig, answer: int, position: int, begin: int) -> int:
    """A draft's token at a position, drawn independently of the target's. `begin` is where the draft begins: a position
    that is drafted again gets new noise, since what became of the first draft depends on the old."""
    return _drawn(source, _mix(_mix(_key(config.rng_seed, answer, position) + DRAFTING) + begin))


def uniform(config: GenerationConfig, answer: int, position: int) -> float:
    """Uniform noise in (0, 1), independent of what chooses the tokens of the target and of drafts."""
    bits = _mix(_key(config.rng_seed, answer, position) + ACCEPTING) >> 12
    return (bits + 0.5) * UNIT


def gumbel(seed: int, answer: int, position: int, ids: Ids) -> Scores:
    """Standard Gumbel noise, float64 [candidates], a pure function of its arguments.

    The hash is the finalizer of SplitMix64 (Steele et al., 2014, doi 10.1145/2660193.2660195), 52 of its bits taken as
    the middle of an equal slice of (0, 1), so that no logarithm meets 0 or 1.
    """
    return -np.log(_exponentials(_key(seed, answer, position), ids))


def _winner_of_all(scores: Logits | Scores, temperature: float, key: int) -> int:
    """The id with the highest sum of tempered score and noise. Groups are computed in the order of their upper bounds,
    until the best sum found is above all bounds that remain."""
    highest = np.maximum.reduceat(scores, np.arange(0, scores.size, GROUP_SIZE))
    best = highest.max()
    firsts, first_ids = _earliest(key, np.arange(highest.size))
    bounds = _tempered(highest, best, temperature) - np.log(firsts) + ROUNDING
    by_bound = np.argsort(-bounds)
    num = FEW_GROUPS
    while True:
        groups = by_bound[:num, None]
        ids = groups * GROUP_SIZE + np.arange(GROUP_SIZE)
        totals = _tempered(scores.take(ids, mode="clip"), best, temperature)
        totals -= np.log(_after_earliest(firsts[groups], first_ids[groups], key, ids))
        totals[ids >= scores.size] = -np.inf
        winning = totals.max()
        needed = int(np.count_nonzero(bounds >= winning))
        if needed <= num:
            return int(ids[totals == winning].min())
        num = needed


def _tempered(scores: Logits | Scores, best: np.floating[Any], temperature: float) -> Scores:
    with np.errstate(over="ignore"):  # at the smallest temperatures all but the best become -inf
        return (scores.astype(np.float64) - best) / temperature


def _likeliest(scores: Logits | Scores, are_enough: Callable[[Ids], bool]) -> Ids:
    """Ids of the highest scores, as many as `are_enough` or more, found without sorting all."""
    best = scores.max()
    for reach in REACHES:
        ids = np.flatnonzero(scores >= best - reach)
        if are_enough(ids):
            return ids
    return np.flatnonzero(scores > -np.inf)


def _top(ids: Ids, scores: Logits | Scores, num: int) -> Ids:
    """The ids of the `num` highest scores; of equal ones the lower."""
    if num >= ids.size:
        return ids
    least = np.partition(scores, -num)[-num]
    left = scores >= least
    if surplus := int(np.count_nonzero(left)) - num:
        left[np.flatnonzero(scores == least)[-surplus:]] = False
    return ids[left]


def _nucleus(scores: Scores, top_p: float) -> Ids:
    """Indices of the smallest set of most probable tokens with a total probability of `top_p`."""
    odds = np.exp(scores)
    mass = top_p * odds.sum()
    likeliest = _likeliest(scores, lambda ids: odds[ids].sum() >= mass)
    order = likeliest[np.argsort(-scores[likeliest], kind="stable")]
    return np.sort(order[: int(np.searchsorted(np.cumsum(odds[order]), mass)) + 1])


def _drawn(source: Distribution, key: int) -> int:
    with np.errstate(divide="ignore"):
        scores = np.log(source.probabilities)
    return int(source.ids[np.argmax(scores - np.log(_exponentials(key, source.ids)))])


def _key(seed: int, answer: int, position: int) -> int:
    return _mix(_mix(_mix(seed) + answer) + position)


def _exponentials(key: int, ids: Ids) -> Times:
    """Standard exponential noise of each id."""
    return _after_earliest(*_earliest(key, ids // GROUP_SIZE), key, ids)


def _after_earliest(firsts: Times, first_ids: Ids, key: int, ids: Ids) -> Times:
    """The noise of ids in groups whose smallest noise is `firsts`, at `first_ids`."""
    return firsts + np.where(ids == first_ids, 0.0, _exponential(_hashes(key, ids)))


def _earliest(key: int, groups: Ids) -> tuple[Times, Ids]:
    """The smallest noise of each group, and the id that has it."""
    hashes = _hashes(_mix(key), groups)
    return _exponential(hashes) / GROUP_SIZE, groups * GROUP_SIZE + (hashes % np.uint64(GROUP_SIZE)).astype(np.int64)


def _hashes(key: int, numbers: Ids) -> Hashes:
    """64 random bits for each."""
    bits = numbers.astype(np.uint64)
    bits *= np.uint64(GOLDEN)
    bits += np.uint64(key)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


def _exponential(hashes: Hashes) -> Times:
    """Standard exponential times from the upper 52 bits."""
    return -np.log(((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * UNIT)


def _mix(value: int) -> int:
    """SplitMix64: one well-mixed 64-bit word for each 64-bit word."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
