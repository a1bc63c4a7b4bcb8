"""From a row of logits to the token for (seed, answer, position): pure functions, no state, no random generator.

The token at position t is `argmax over v of (score(v) + Gumbel(seed, answer, t, v))`, where the scores are the
processed logits; by the Gumbel-max identity this samples from softmax(score) (Maddison et al., arXiv 1411.0030). The
noise is a hash of its arguments, so the token does not depend on how position t was reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .config import GenerationConfig

Logits = NDArray[np.float32]  # [vocabulary]
Scores = NDArray[np.float64]  # [candidates]
Ids = NDArray[np.int64]  # [candidates], ascending

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
UNIT = 2.0**-52
HIGHEST_NOISE = float(-np.log(-np.log1p(-0.5 * UNIT)))  # 36.7, what the largest hash maps to


def choose_token(
    logits: Logits, tokens: Sequence[int], num_prompt_tokens: int, config: GenerationConfig, answer: int = 0
) -> int:
    """The token that follows `tokens`, the prompt and the answer so far. A tie goes to the lowest id."""
    scores = penalized(logits, tokens, num_prompt_tokens, config)
    if config.greedy:
        return int(np.argmax(scores))
    ids, scores = candidates(scores, config)
    noise_key = (config.rng_seed, answer, len(tokens))
    best = int(np.argmax(scores))
    floor = scores[best] + gumbel(*noise_key, ids[best : best + 1])[0] - HIGHEST_NOISE
    possible = scores >= floor  # the rest cannot win, whatever their noise
    ids, scores = ids[possible], scores[possible]
    return int(ids[np.argmax(scores + gumbel(*noise_key, ids))])


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
    with np.errstate(over="ignore"):  # at the smallest temperatures all but the best become -inf
        scores = (scores - scores.max()) / config.temperature
    ids = np.flatnonzero(scores > -np.inf)
    if config.top_k is not None and config.top_k < ids.size:
        threshold = np.partition(scores[ids], -config.top_k)[-config.top_k]
        ids = ids[scores[ids] >= threshold]
        surplus = ids.size - config.top_k
        if surplus:
            ids = np.delete(ids, np.flatnonzero(scores[ids] == threshold)[-surplus:])
    if config.top_p < 1.0:
        order = ids[np.argsort(-scores[ids], kind="stable")]
        mass = np.cumsum(np.exp(scores[order] - scores[order[0]]))
        ids = np.sort(order[: int(np.searchsorted(mass, config.top_p * mass[-1])) + 1])
    if config.min_p > 0.0:
        ids = ids[scores[ids] >= scores[ids].max() + np.log(config.min_p)]
    return ids, scores[ids]


def gumbel(seed: int, answer: int, position: int, ids: Ids) -> Scores:
    """Standard Gumbel noise, float64 [candidates], a pure function of its arguments.

    The hash is the finalizer of SplitMix64 (Steele et al., 2014, doi 10.1145/2660193.2660195), 52 of its bits taken as
    the middle of an equal slice of (0, 1), so that neither logarithm meets 0 or 1.
    """
    key = _mix(_mix(_mix(seed) + answer) + position)
    bits = np.uint64(key) + ids.astype(np.uint64) * np.uint64(GOLDEN)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * UNIT
    return -np.log(-np.log(uniform))


def _mix(value: int) -> int:
    """SplitMix64: one well-mixed 64-bit word for each 64-bit word."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _within(ids: Iterable[int], size: int) -> list[int]:
    return [i for i in ids if i < size]
