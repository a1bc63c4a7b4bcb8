"""A slow decoder that is plainly right: no drafts, no cache kept, one sequence, plain Python arithmetic.

It shares nothing with the engine but the model itself. Every token is computed by feeding the whole text anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import regex

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.target import Window

Logits = Sequence[float]
WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Answer:
    token_ids: list[int]
    finish_reason: str
    text: str = ""


def model_logits(model: PagedModel) -> Callable[[Sequence[int]], Logits]:
    """What the model says after a whole prefix, fed from position 0 into a table of its own in passes that are as long
    as can be."""

    def logits(prefix: Sequence[int]) -> Logits:
        blocks = range(-(-max(2, len(prefix)) // BLOCK_SIZE))
        if len(prefix) == 1:  # two rows, as everywhere else here: the token stands in both, the first one counts
            return model.forward([Window([*prefix, *prefix], 0, blocks, num_rows=2)])[0][0].tolist()
        for start in range(0, len(prefix), model.rows.most):
            (rows,) = model.forward([Window(prefix[start : start + model.rows.most], start, blocks)])
        return rows[0].tolist()

    return logits


def decode(
    logits: Callable[[Sequence[int]], Logits],
    prompt: Sequence[int],
    config: GenerationConfig,
    max_new_tokens: int,
    answer: int = 0,
    to_text: Callable[[Sequence[int]], str] | None = None,
    allowed: Callable[[Sequence[int]], tuple[frozenset[int], bool]] | None = None,
) -> Answer:
    """The answer to a prompt, token by token until one of the ways to end is met.

    `allowed` tells which tokens may follow those written, and whether the answer may end there.
    """
    written: list[int] = []
    while True:
        row = logits([*prompt, *written])
        if allowed is not None:
            may_follow, may_end = allowed(written)
            may_follow |= stop_ids(config) if may_end else frozenset()
            row = [logit if token in may_follow else -math.inf for token, logit in enumerate(row)]
        written.append(next_token(row, prompt, written, config, answer))
        text = to_text(written) if to_text else ""
        if any(stop in text for stop in config.stop_strings):
            return Answer(written, "stop", cut(text, config))
        if written[-1] in stop_ids(config):
            return Answer(written, "stop", text)
        if allowed is not None and allowed(written) == (frozenset(), True):
            return Answer(written, "stop", text)
        if len(written) == max_new_tokens:
            return Answer(written, "length", text)


def matching(pattern: str, tokens: Sequence[str]) -> Callable[[Sequence[int]], tuple[frozenset[int], bool]]:
    """The tokens that keep an answer on the way to match a pattern, found by trying each; for text of whole characters.

    A token without text keeps it where it is, and is none of them.
    """

    @cache
    def behind(text: str) -> tuple[frozenset[int], bool]:
        tried = (i for i, piece in enumerate(tokens) if piece and regex.fullmatch(pattern, text + piece, partial=True))
        return frozenset(tried), regex.fullmatch(pattern, text) is not None

    return lambda written: behind("".join(tokens[token] for token in written))


def logprobs(logits: Logits) -> list[float]:
    """Log-softmax."""
    highest = max(logits)
    total = math.log(math.fsum(math.exp(logit - highest) for logit in logits))
    return [logit - highest - total for logit in logits]


def cut(text: str, config: GenerationConfig) -> str:
    """The text up to the stop string that is complete first."""
    for end in range(len(text) + 1):
        if found := [stop for stop in config.stop_strings if text[:end].endswith(stop)]:
            return text[:end] if config.include_stop_str_in_output else text[: end - max(map(len, found))]
    return text


def stop_ids(config: GenerationConfig) -> set[int]:
    return set(config.stop_token_ids) | (set() if config.ignore_eos else set(config.eos_token_ids))


def next_token(
    logits: Logits, prompt: Sequence[int], written: Sequence[int], config: GenerationConfig, answer: int
) -> int:
    """The best of score + noise among the tokens that the settings leave; the lowest id of equal ones."""
    scores = penalize(logits, prompt, written, config)
    if not config.do_sample or config.temperature == 0:
        return min(scores, key=lambda token: (-scores[token], token))
    position = len(prompt) + len(written)
    kept = survivors(scores, config)
    total = {t: kept[t] + gumbel(config.rng_seed, answer, position, t) for t in kept}
    return min(total, key=lambda token: (-total[token], token))


def penalize(
    logits: Logits, prompt: Sequence[int], written: Sequence[int], config: GenerationConfig
) -> dict[int, float]:
    scores = dict(enumerate(map(float, logits)))
    for token in {*prompt, *written}:
        factor = config.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token in set(written):
        scores[token] -= config.presence_penalty
    for token in written:
        scores[token] -= config.frequency_penalty
    for token, bias in config.logit_bias:
        if token in scores:
            scores[token] += bias
    if len(written) < config.min_new_tokens:
        for token in stop_ids(config) & scores.keys():
            scores[token] = -math.inf
    return scores


def survivors(scores: dict[int, float], config: GenerationConfig) -> dict[int, float]:
    """Tempered scores of the tokens that top-k, then top-p, then min-p leave."""
    ranked = sorted((t for t in scores if scores[t] > -math.inf), key=lambda token: (-scores[token], token))
    ranked = ranked[: config.top_k]
    tempered = {token: scores[token] / config.temperature for token in ranked}
    if config.top_p < 1:
        odds = probabilities(tempered)
        needed = 0.0
        for count, token in enumerate(ranked, 1):
            needed += odds[token]
            if needed >= config.top_p:
                ranked = ranked[:count]
                break
    if config.min_p > 0:
        odds = probabilities({token: tempered[token] for token in ranked})
        ranked = [token for token in ranked if odds[token] >= config.min_p * odds[ranked[0]]]
    return {token: tempered[token] for token in ranked}


def probabilities(scores: dict[int, float]) -> dict[int, float]:
    """Softmax."""
    highest = max(scores.values())
    weights = {token: math.exp(score - highest) for token, score in scores.items()}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def gumbel(seed: int, answer: int, position: int, token: int) -> float:
    """-log(arrival). In each group of 64 tokens one arrives first, after an exponential time divided by 64, and each of
    the others an exponential time later."""
    group, place = divmod(token, 64)
    first, arrival = first_of_group(seed, answer, position, group)
    if place != first:
        arrival += exponential(finalize(key_of(seed, answer, position) + token * GOLDEN))
    return -math.log(arrival)


@lru_cache(1024)
def first_of_group(seed: int, answer: int, position: int, group: int) -> tuple[int, float]:
    """The place of the token that arrives first, and when."""
    word = finalize(finalize(key_of(seed, answer, position) + GOLDEN) + group * GOLDEN)
    return word % 64, exponential(word) / 64


@lru_cache(16)
def key_of(seed: int, answer: int, position: int) -> int:
    key = 0
    for number in (seed, answer, position):
        key = finalize(key + number + GOLDEN)
    return key


def exponential(word: int) -> float:
    """-log(u), u from the upper 52 bits, in the middle of its slice of (0, 1)."""
    return -math.log(((word >> 12) + 0.5) / 2**52)


def finalize(word: int) -> int:
    """The finalizer of SplitMix64."""
    word %= WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31
