"""Budgets: the time that each answer may still lose to drafting, and what the next one is expected to gain by it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..engine.request import Request
from .acceptance import Conditions
from .attempts import FIRST_HOPE, Attempts, Trials
from .draft import Draft, Kind

TOLERANCE = 0.02  # share of the time of plain decoding that an answer may lose to drafting
ALLOWANCE = 3  # passes with one drafted token that it may lose in addition, since luck evens out only in the long run
LEAST_ALLOWANCE = 0.75  # the same after answers that have lost theirs: with none, it would hardly be tried again
LEARN_HOPE = 0.25  # weight of what drafting was worth to the latest answer in what is expected of it for the next
FIRST_PAUSE = 3  # passes before the first attempt for an answer, if attempts are not expected to pay


@dataclass(slots=True)
class LossBudget:
    """For one answer, in milliseconds: what plain decoding would have taken in the same batch, and how much longer its
    passes took because of drafts, its own and those of others, less what its own accepted tokens saved.

    The answer may lose TOLERANCE of its time and the allowance, ALLOWANCE passes at most. The allowance is counted in
    passes with one drafted token, because on machines where a second row is expensive three plain passes could not pay
    for any draft. Reading the prompt adds nothing to the budget, or a short answer to a long prompt could take twice
    its time.

    drafted_ms: the time of the answer's first pass with one drafted token.
    allowance: in such passes.
    attempts: attempts to draft for it; the price of one is that of asking the drafters.
    """

    drafted_ms: float
    allowance: float
    attempts: Attempts
    plain_ms: float = 0.0
    lost_ms: float = 0.0

    @property
    def allowance_ms(self) -> float:
        return self.allowance * self.drafted_ms

    @property
    def remaining_ms(self) -> float:
        return max(0.0, TOLERANCE * self.plain_ms + self.allowance_ms - self.lost_ms)

    @property
    def lost_passes(self) -> float:
        """What the answer has lost, in passes with one drafted token; negative if drafting has gained."""
        return self.lost_ms / self.drafted_ms

    def passed(self, num_tokens: int, plain_ms: float, delay_ms: float) -> None:
        """Count a pass that gave the answer `num_tokens` and took `delay_ms` longer than the plain `plain_ms`."""
        self.plain_ms += num_tokens * plain_ms
        self.lost_ms += delay_ms - (num_tokens - 1) * plain_ms
        self.attempts.wait()


class Budgets:
    """The `LossBudget` of each answer that has begun. What drafting was worth to the latest answers of a kind decides
    how soon it is given up for the next one, and whether it is tried at all (see `Trials`). What answers have lost is
    missing from the allowance of the next ones of their kind until drafting has gained it back."""

    def __init__(self) -> None:
        self._begun: dict[Request, LossBudget] = {}
        self._trials = Trials()
        self._hopes: defaultdict[Kind, float] = defaultdict(lambda: FIRST_HOPE)
        self._allowances: defaultdict[Kind, float] = defaultdict(lambda: ALLOWANCE)

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
        if attempts.is_hopeless and not attempts.is_due and not self._trials.has_next(draft.kind):
            attempts.stop()
        budget = self._begun[draft.request] = LossBudget(drafted_ms, self._allowances[draft.kind], attempts)
        return budget

    def is_due(self, request: Request) -> bool:
        """Whether to draft for a request in this pass."""
        budget = self._begun.get(request)
        return budget is None or budget.attempts.is_due

    def rests(self, request: Request) -> bool:
        """Whether nothing more is drafted for an answer."""
        budget = self._begun.get(request)
        return budget is not None and budget.attempts.is_stopped

    def release(self, request: Request) -> None:
        """Forget a finished request, and learn what drafting was worth to it."""
        budget = self._begun.pop(request, None)
        if budget is not None and not budget.attempts.is_stopped:
            worth = min(budget.attempts.gain, FIRST_HOPE)  # a large gain must not make the next answer lose more
            kind = request.config.mode, Conditions.of(request.config)
            self._hopes[kind] += LEARN_HOPE * (worth - self._hopes[kind])
            left = self._allowances[kind] - budget.lost_passes
            self._allowances[kind] = min(ALLOWANCE, max(LEAST_ALLOWANCE, left))
