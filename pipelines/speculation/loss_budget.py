"""LossBudget: the time that an answer may still lose to drafting, and whether to draft again."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 0.02  # share of the time of plain decoding that an answer may lose to drafting
ALLOWANCE = 3  # passes with a draft of one token that it may lose besides: luck needs time to even out
HOPE = 0.01  # share of a plain pass that asking the drafters is always taken to be worth, or they are never asked again
FIRST_HOPE = 0.5  # the same for the first attempts of the first answers
FORGET = 0.15  # weight of the newest attempt in the expected gain of the next
LONGEST_PAUSE = 16  # passes
FIRST_PAUSE = 3  # passes before the first attempt of an answer from which no more is hoped for than asking costs


@dataclass(slots=True)
class LossBudget:
    """For one answer, in milliseconds: what plain decoding would have taken in the same batch, and how much longer its
    passes took because of drafts, its own and those of others, less what its own accepted tokens saved.

    The answer may lose TOLERANCE of its time, and ALLOWANCE passes with a draft of one token. Where a second row is
    expensive, so is every draft, and three plain passes would not pay for one that is worth it. Reading the prompt adds
    nothing to the budget, or a short answer behind a long prompt could take twice its time.

    gain: what the next attempt to draft is expected to save, in plain passes.
    """

    allowance_ms: float
    plain_ms: float = 0.0
    lost_ms: float = 0.0
    gain: float = FIRST_HOPE
    _pause: int = 0  # passes between attempts
    _waited: int = 0

    @classmethod
    def of(cls, drafted_ms: float, price_ms: float, plain_ms: float, hope: float = FIRST_HOPE) -> LossBudget:
        """For an answer whose first pass takes `drafted_ms` with one drafted token and `plain_ms` without, and whose
        first attempt to draft is expected to save `hope` plain passes for the `price_ms` of asking."""
        budget = cls(ALLOWANCE * drafted_ms, gain=hope)
        budget._pause = 0 if budget._is_worthwhile(price_ms, plain_ms) else FIRST_PAUSE
        return budget

    @property
    def remaining_ms(self) -> float:
        return max(0.0, TOLERANCE * self.plain_ms + self.allowance_ms - self.lost_ms)

    @property
    def is_due(self) -> bool:
        """Whether to ask the drafters in this pass. While asking has gained less than it cost, the pauses between
        attempts grow, up to LONGEST_PAUSE passes."""
        return self._waited >= self._pause

    def passed(self, num_tokens: int, plain_ms: float, delay_ms: float) -> None:
        """Count a pass that gave the answer `num_tokens` and took `delay_ms` longer than the plain `plain_ms`."""
        self.plain_ms += num_tokens * plain_ms
        self.lost_ms += delay_ms - (num_tokens - 1) * plain_ms
        self._waited += 1

    def attempted(self, gain_ms: float, price_ms: float, plain_ms: float) -> None:
        """Count an attempt to draft, its expected gain, and the price of asking."""
        self.gain += FORGET * (gain_ms / plain_ms - self.gain)
        self._waited = 0
        is_worthwhile = self._is_worthwhile(price_ms, plain_ms)
        self._pause = 0 if is_worthwhile else min(2 * self._pause + 1, LONGEST_PAUSE)

    def _is_worthwhile(self, price_ms: float, plain_ms: float) -> bool:
        return max(self.gain, HOPE) * plain_ms >= price_ms
