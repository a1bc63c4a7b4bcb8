"""Drafters for the tests: always right, always wrong, now and then right, and broken in every way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from outrider.pipelines.engine.request import Request
from outrider.pipelines.engine.sampling import choose_token
from outrider.pipelines.speculation.acceptance import Features
from outrider.pipelines.speculation.drafters.base import Proposal

from ..fakes import Rule


class _TestDrafter:
    name = "test"

    def __init__(self) -> None:
        self.released: list[Request] = []

    def release(self, request: Request) -> None:
        self.released.append(request)


class KnowingDrafter(_TestDrafter):
    """Knows what the target will write, and tells it for as long as `is_honest` says."""

    def __init__(self, rule: Rule, is_honest: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self._rule = rule
        self._is_honest = is_honest

    def propose(self, request: Request, ahead: tuple[int, ...] = ()) -> Iterator[Proposal]:
        tokens = [*request.tokens, *ahead]
        while True:
            logits = self._rule(tokens)
            token = choose_token(logits, tokens, request.num_prompt_tokens, request.config, request.answer)
            proposed = token if self._is_honest() else (token + 1) % len(logits)
            yield Proposal(proposed, self.name, Features(self.name))
            tokens.append(token)


def right(rule: Rule) -> KnowingDrafter:
    return KnowingDrafter(rule)


def wrong(rule: Rule) -> KnowingDrafter:
    return KnowingDrafter(rule, lambda: False)


def unsteady(rule: Rule, seed: int = 0) -> KnowingDrafter:
    """Right three times in four."""
    rng = random.Random(seed)
    return KnowingDrafter(rule, lambda: rng.random() < 0.75)


class BrokenDrafter(_TestDrafter):
    """Proposes what `make(request, rng)` yields, and raises what it raises."""

    def __init__(self, make: Callable[[Request, random.Random], object], seed: int = 0) -> None:
        super().__init__()
        self._make = make
        self._rng = random.Random(seed)

    def propose(self, request: Request, ahead: tuple[int, ...] = ()) -> Iterator[Proposal]:
        proposed = self._make(request, self._rng)
        if not isinstance(proposed, list):
            return proposed  # type: ignore[return-value]
        return (Proposal(token, self.name, Features(self.name)) for token in proposed)


def _random_tokens(request: Request, rng: random.Random) -> list[int]:
    return [rng.randrange(12) for _ in range(rng.randint(0, 16))]


def _raises(request: Request, rng: random.Random) -> list[int]:
    raise RuntimeError("this drafter is broken")


def _raises_at_times(request: Request, rng: random.Random) -> list[int]:
    return _raises(request, rng) if rng.random() < 0.2 else _random_tokens(request, rng)


def _raises_in_the_middle(request: Request, rng: random.Random) -> Iterator[Proposal]:
    yield Proposal(3, "test", Features("test"))
    raise RuntimeError("this drafter breaks off")


SABOTAGE: dict[str, Callable[[Request, random.Random], object]] = {
    "random tokens": _random_tokens,
    "raises": _raises,
    "raises at times": _raises_at_times,
    "raises in the middle": _raises_in_the_middle,
    "ids behind the vocabulary": lambda request, rng: [10**6] * 16,
    "one id just behind the vocabulary": lambda request, rng: [*[1] * 3, 2**63],
    "negative ids": lambda request, rng: [-1] * 16,
    "far too many tokens": lambda request, rng: [1] * 5000,
    "words": lambda request, rng: ["token"] * 16,
    "fractions": lambda request, rng: [1.5] * 16,
    "not a number": lambda request, rng: [float("nan")] * 16,
    "nothing": lambda request, rng: [],
    "None": lambda request, rng: None,
    "no proposals": lambda request, rng: iter([1, 2, 3]),
    "the prompt again": lambda request, rng: request.tokens[:16],
}
