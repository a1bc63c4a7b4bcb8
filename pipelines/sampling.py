"""From a row of logits to the token for (seed, answer, position): pure functions, no state, no random generator.

The token at position t is `argmax over v of (score(v) + Gumbel(seed, answer, t, v))`, where the scores are the
processed logits; by the Gumbel-max identity this samples from softmax(score) (Maddison et al., arXiv 1411.0030). The
noise is a hash of its arguments, so the token does not depend on how position t was reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .config import GenerationConfig

Logits = NDArray[np.float32]  # [vocabulary]
Scores = NDArray[np.float64]  # [candidates]
Ids = NDArray[np.int64]  # [candidates], ascending
Hashes = NDArray[np.uint64]  # [candidates]

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
UNIT = 2.0**-52
# How far below the best score the likeliest tokens are looked for, before all are taken into account.
REACHES = (8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
ROUNDING = 1e-9  # more than what noise and scores are rounded by


def choose_token(
    logits: Logits, tokens: Sequence[int], num_prompt_tokens: int, config: GenerationConfig, answer: int = 0
) -> int:
    """The token that follows `tokens`, the prompt and the answer so far. A tie goes to the lowest id."""
    scores = penalized(logits, tokens, num_prompt_tokens, config)
    if config.greedy:
        return int(np.argmax(scores))
    ids, scores = candidates(scores, config)
    return _winner(ids, scores, _key(config.rng_seed, answer, len(tokens)))


def restricted(logits: Logits, allowed: NDArray[np.bool_] | None) -> Logits:
    """Logits of which only those of the `allowed` tokens are left over; the others, and ids behind them, are -inf."""
    if allowed is None:
        return logits
    size = min(logits.size, allowed.size)
    left = np.full_like(logits, -np.inf)
    np.copyto(left[:size], logits[:size], where=allowed[:size])
    return left


def penalized(logits: Logits, tokens: Sequence[int], num_prompt_tokens: int, config: GenerationConfig) -> Scores:
    """Logits after the penalties and the bias, float64 [vocabulary].

    Repetition divides positive and multiplies negative logits of every token in prompt and answer (CTRL, arXiv
    1909.05858); presence and frequency subtract once, or once for each occurrence, for tokens of the answer. Last
    comes the bias, so that no penalty scales it. Tokens that end the answer are impossible before `min_new_tokens`.
    """
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
        scores[_within(config.stop_ids, scores.size)] = -np.inf
    return scores


def candidates(scores: Scores, config: GenerationConfig) -> tuple[Ids, Scores]:
    """The ids (ascending) and tempered scores that top-k, then top-p, then min-p leave over; never none.

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
    with np.errstate(over="ignore"):  # at the smallest temperatures all but the best become -inf
        scores = (scores - best) / config.temperature
    if config.top_p < 1.0:
        left = _nucleus(scores, config.top_p)
        ids, scores = ids[left], scores[left]
    if config.min_p > 0.0:
        left = np.flatnonzero(scores >= np.log(config.min_p))
        ids, scores = ids[left], scores[left]
    return ids, scores


def gumbel(seed: int, answer: int, position: int, ids: Ids) -> Scores:
    """Standard Gumbel noise, float64 [candidates], a pure function of its arguments.

    The hash is the finalizer of SplitMix64 (Steele et al., 2014, doi 10.1145/2660193.2660195), 52 of its bits taken as
    the middle of an equal slice of (0, 1), so that neither logarithm meets 0 or 1.
    """
    return _noise(_hashes(_key(seed, answer, position), ids))


def _winner(ids: Ids, scores: Scores, key: int) -> int:
    """The id whose score and noise are highest. Logarithms are slow, so the noise of those that are far from the best
    is only computed where their hashes are so high that it could lift them above all that are near."""
    hashes = _hashes(key, ids)
    least = scores.max() - REACHES[0]
    near = scores >= least
    lead = (scores[near] + _noise(hashes[near])).max()
    near |= hashes >= _least_hash(lead - least - ROUNDING)
    return int(ids[near][np.argmax(scores[near] + _noise(hashes[near]))])


def _likeliest(scores: Scores, are_enough: Callable[[Ids], bool]) -> Ids:
    """Those of the highest scores that are enough, found without sorting all."""
    best = scores.max()
    for reach in REACHES:
        ids = np.flatnonzero(scores >= best - reach)
        if are_enough(ids):
            return ids
    return np.flatnonzero(scores > -np.inf)


def _top(ids: Ids, scores: Scores, num: int) -> Ids:
    """So many of the highest scores, the lower ids of equal ones."""
    if num >= ids.size:
        return ids
    least = np.partition(scores, -num)[-num]
    left = scores >= least
    if surplus := int(np.count_nonzero(left)) - num:
        left[np.flatnonzero(scores == least)[-surplus:]] = False
    return ids[left]


def _nucleus(scores: Scores, top_p: float) -> Ids:
    """Where the most probable are that have the mass `top_p` together."""
    odds = np.exp(scores)
    mass = top_p * odds.sum()
    likeliest = _likeliest(scores, lambda ids: odds[ids].sum() >= mass)
    order = likeliest[np.argsort(-scores[likeliest], kind="stable")]
    return np.sort(order[: int(np.searchsorted(np.cumsum(odds[order]), mass)) + 1])


def _key(seed: int, answer: int, position: int) -> int:
    return _mix(_mix(_mix(seed) + answer) + position)


def _hashes(key: int, ids: Ids) -> Hashes:
    """52 random bits for each id."""
    bits = ids.astype(np.uint64)
    bits *= np.uint64(GOLDEN)
    bits += np.uint64(key)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    bits >>= np.uint64(12)
    return bits


def _noise(hashes: Hashes) -> Scores:
    return -np.log(-np.log((hashes.astype(np.float64) + 0.5) * UNIT))


def _least_hash(noise: float) -> np.uint64:
    """A hash below which all noise is lower."""
    return np.uint64(max(0, math.floor(math.exp(-math.exp(-noise)) / UNIT) - 1))


def _mix(value: int) -> int:
    """SplitMix64: one well-mixed 64-bit word for each 64-bit word."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _within(ids: Iterable[int], size: int) -> list[int]:
    return [i for i in ids if i < size]
