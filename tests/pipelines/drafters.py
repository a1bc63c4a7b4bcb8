"""Drafters for the tests: always right, always wrong, now and then right, and broken in every way."""

from __future__ import annotations

import random
from collections.abc import Callable

from outrider.pipelines.drafters.base import Draft
from outrider.pipelines.sampling import choose_token
from outrider.pipelines.sequence import Sequence

from .fakes import Rule


class _TestDrafter:
    name = "test"

    def __init__(self) -> None:
        self.released: list[Sequence] = []

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence)


class KnowingDrafter(_TestDrafter):
    """Knows what the target will write, and tells it for as long as `is_honest` says."""

    def __init__(self, rule: Rule, is_honest: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self._rule = rule
        self._is_honest = is_honest

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        tokens = list(sequence.tokens)
        proposed: list[int] = []
        for _ in range(limit):
            logits = self._rule(tokens)
            token = choose_token(logits, tokens, sequence.num_prompt_tokens, sequence.config, sequence.answer)
            proposed.append(token if self._is_honest() else (token + 1) % len(logits))
            tokens.append(token)
        return Draft(tuple(proposed), (self.name,) * limit)


def right(rule: Rule) -> KnowingDrafter:
    return KnowingDrafter(rule)


def wrong(rule: Rule) -> KnowingDrafter:
    return KnowingDrafter(rule, lambda: False)


def unsteady(rule: Rule, seed: int = 0) -> KnowingDrafter:
    """Right three times in four."""
    rng = random.Random(seed)
    return KnowingDrafter(rule, lambda: rng.random() < 0.75)


class BrokenDrafter(_TestDrafter):
    """Proposes what `make(sequence, limit, rng)` returns, or raises what it raises."""

    def __init__(self, make: Callable[[Sequence, int, random.Random], object], seed: int = 0) -> None:
        super().__init__()
        self._make = make
        self._rng = random.Random(seed)

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        proposed = self._make(sequence, limit, self._rng)
        if not isinstance(proposed, list):
            return proposed  # type: ignore[return-value]
        return Draft(tuple(proposed), (self.name,) * len(proposed))


def _random_tokens(sequence: Sequence, limit: int, rng: random.Random) -> list[int]:
    return [rng.randrange(12) for _ in range(rng.randint(0, limit))]


def _raises(sequence: Sequence, limit: int, rng: random.Random) -> list[int]:
    raise RuntimeError("this drafter is broken")


def _raises_at_times(sequence: Sequence, limit: int, rng: random.Random) -> list[int]:
    return _raises(sequence, limit, rng) if rng.random() < 0.2 else _random_tokens(sequence, limit, rng)


SABOTAGE: dict[str, Callable[[Sequence, int, random.Random], object]] = {
    "random tokens": _random_tokens,
    "raises": _raises,
    "raises at times": _raises_at_times,
    "ids behind the vocabulary": lambda sequence, limit, rng: [10**6] * limit,
    "one id just behind the vocabulary": lambda sequence, limit, rng: [*[1] * (limit - 1), 2**63],
    "negative ids": lambda sequence, limit, rng: [-1] * limit,
    "too many tokens": lambda sequence, limit, rng: [1] * (limit + 1),
    "far too many tokens": lambda sequence, limit, rng: [1] * 5000,
    "words": lambda sequence, limit, rng: ["token"] * limit,
    "fractions": lambda sequence, limit, rng: [1.5] * limit,
    "not a number": lambda sequence, limit, rng: [float("nan")] * limit,
    "nothing": lambda sequence, limit, rng: [],
    "None": lambda sequence, limit, rng: None,
    "sources missing": lambda sequence, limit, rng: Draft((1,) * limit, ()),
    "the prompt again": lambda sequence, limit, rng: sequence.tokens[:limit],
}
