"""LossBudget: the time that an answer may still lose to drafting."""

from __future__ import annotations

from dataclasses import dataclass, field

from .attempts import Attempts

TOLERANCE = 0.02  # share of the time of plain decoding that an answer may lose to drafting
ALLOWANCE = 3  # passes with a draft of one token that it may lose besides: luck needs time to even out


@dataclass(slots=True)
class LossBudget:
    """For one answer, in milliseconds: what plain decoding would have taken in the same batch, and how much longer its
    passes took because of drafts, its own and those of others, less what its own accepted tokens saved.

    The answer may lose TOLERANCE of its time, and ALLOWANCE passes with a draft of one token. Where a second row is
    expensive, so is every draft, and three plain passes would not pay for one that is worth it. Reading the prompt adds
    nothing to the budget, or a short answer behind a long prompt could take twice its time.

    attempts: to draft for it, whose price is that of asking the drafters.
    """

    allowance_ms: float
    plain_ms: float = 0.0
    lost_ms: float = 0.0
    attempts: Attempts = field(default_factory=Attempts)

    @classmethod
    def of(cls, drafted_ms: float, attempts: Attempts) -> LossBudget:
        """For an answer whose first pass takes `drafted_ms` with one drafted token."""
        return cls(ALLOWANCE * drafted_ms, attempts=attempts)

    @property
    def remaining_ms(self) -> float:
        return max(0.0, TOLERANCE * self.plain_ms + self.allowance_ms - self.lost_ms)

    def passed(self, num_tokens: int, plain_ms: float, delay_ms: float) -> None:
        """Count a pass that gave the answer `num_tokens` and took `delay_ms` longer than the plain `plain_ms`."""
        self.plain_ms += num_tokens * plain_ms
        self.lost_ms += delay_ms - (num_tokens - 1) * plain_ms
        self.attempts.wait()
