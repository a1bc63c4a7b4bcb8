"""Budgets: the loss budgets of all answers, and what the next answer hopes to gain by drafting."""

from __future__ import annotations

from collections import defaultdict

from ..engine.request import Request
from .acceptance import Conditions
from .attempts import FIRST_HOPE, Attempts
from .draft import Draft, Kind
from .loss_budget import LossBudget

LEARN_HOPE = 0.25  # weight of what drafting was last worth to an answer in what the next one hopes for
FIRST_PAUSE = 3  # passes before the first attempt of an answer of which too little is hoped for to pay for it


class Budgets:
    """The `LossBudget` of each answer that has begun. What drafting was last worth to an answer tells how soon the next
    one of its kind gives it up."""

    def __init__(self) -> None:
        self._begun: dict[Request, LossBudget] = {}
        self._hopes: defaultdict[Kind, float] = defaultdict(lambda: FIRST_HOPE)

    def __getitem__(self, request: Request) -> LossBudget:
        return self._begun[request]

    def get(self, request: Request) -> LossBudget | None:
        """None if the answer has not begun."""
        return self._begun.get(request)

    def begin(self, draft: Draft, plain_ms: float, drafted_ms: float, asking_ms: float) -> LossBudget:
        """The budget of a draft's request, which begins now.

        plain_ms, drafted_ms: the time of its first pass without drafts, and with one drafted token.
        asking_ms: the time of asking its drafters.
        """
        attempts = Attempts(self._hopes[draft.kind])
        attempts.put_off(FIRST_PAUSE, asking_ms, plain_ms)
        budget = self._begun[draft.request] = LossBudget.of(drafted_ms, attempts)
        return budget

    def is_due(self, request: Request) -> bool:
        """Whether to draft for a request in this pass."""
        budget = self._begun.get(request)
        return budget is None or budget.attempts.is_due

    def release(self, request: Request) -> None:
        """Forget a finished request, and learn what drafting was worth to it."""
        budget = self._begun.pop(request, None)
        if budget is not None:
            worth = min(budget.attempts.gain, FIRST_HOPE)  # an answer that copied must not make the next lose more
            kind = request.config.mode, Conditions.of(request.config)
            self._hopes[kind] += LEARN_HOPE * (worth - self._hopes[kind])
