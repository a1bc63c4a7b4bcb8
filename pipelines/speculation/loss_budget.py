"""LossBudget: how much time drafts have cost an answer, and whether to ask for more of them."""

from __future__ import annotations

from dataclasses import dataclass

TOLERANCE = 0.02  # share of the time of plain decoding that an answer may lose to drafting
ALLOWANCE = 3  # passes with a draft of one token that it may lose besides: luck needs time to even out
HOPE = 0.01  # share of a plain pass that asking is worth in any case: what was not asked for is never found
FIRST_HOPE = 0.5  # the same of the first attempts of an answer
FORGET = 0.15  # weight of the newest attempt in what one is expected to bring
LONGEST_PAUSE = 16  # passes


@dataclass(slots=True)
class LossBudget:
    """Of one answer, in milliseconds: what plain decoding would have taken in the same batch, and how much longer its
    passes took for drafts, its own and those of others, less what it gained by its own.

    It may lose TOLERANCE, and ALLOWANCE passes with a draft of one token, as they were when it began. Where a second
    row is dear, so is any draft, and three plain passes would not pay for one that is worth it. What reading the prompt
    took allows nothing, else a short answer behind a long prompt could take twice its time.
    """

    allowance_ms: float
    plain_ms: float = 0.0
    lost_ms: float = 0.0
    brings_ms: float = 0.0  # an attempt to draft, as far as can be told
    _pause: int = 0  # passes between attempts
    _waited: int = 0

    @classmethod
    def of(cls, plain_ms: float, drafted_ms: float) -> LossBudget:
        """For an answer that begins in a pass of `plain_ms` without drafts, and `drafted_ms` with one of one token."""
        return cls(ALLOWANCE * drafted_ms, brings_ms=FIRST_HOPE * plain_ms)

    @property
    def remaining_ms(self) -> float:
        """What may still be lost."""
        return max(0.0, TOLERANCE * self.plain_ms + self.allowance_ms - self.lost_ms)

    @property
    def is_due(self) -> bool:
        """Whether the drafters are to be asked. Where that has brought less than its price of late, it is left out for
        ever more passes, up to LONGEST_PAUSE: at most as many as lie behind in which it was in vain."""
        return self._waited >= self._pause

    def passed(self, num_tokens: int, plain_ms: float, delay_ms: float) -> None:
        """Count a pass that brought the answer so many tokens, and took `delay_ms` beyond its `plain_ms`."""
        self.plain_ms += num_tokens * plain_ms
        self.lost_ms += delay_ms - (num_tokens - 1) * plain_ms
        self._waited += 1

    def attempted(self, brings_ms: float, price_ms: float, plain_ms: float) -> None:
        """Count an attempt to draft at this price, and what it is expected to bring."""
        self.brings_ms += FORGET * (brings_ms - self.brings_ms)
        self._waited = 0
        is_worthwhile = max(self.brings_ms, HOPE * plain_ms) >= price_ms
        self._pause = 0 if is_worthwhile else min(2 * self._pause + 1, LONGEST_PAUSE)
