"""DraftCost: predicts the time that a model takes to draft on this machine, in milliseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from .kalman_filter import KalmanFilter

FORGET = 0.0013  # share of the correction forgotten in each pass in which the model is not asked, so it is asked again
DOUBT = 0.2  # see `KalmanFilter`
SPREAD = 0.7  # standard deviation of the logarithms of actual over measured times
TOGETHER = 0.5  # their correlation: a busy machine slows all of them


class DraftTime(NamedTuple):
    """The time of a model for drafts, in milliseconds: for generating tokens, for reading those that it catches up
    with, and for beginning the drafts."""

    tokens_ms: float = 0.0
    reading_ms: float = 0.0
    beginning_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return sum(self)

    def plus(self, other: DraftTime) -> DraftTime:
        return DraftTime(*map(sum, zip(self, other, strict=True)))


@dataclass(slots=True)
class DraftCost:
    """The time that a model takes to draft, such as a draft model or a head, in milliseconds.

    token_ms: to generate a token.
    row_ms: to read a token that it has to catch up with.
    context_ms: what each token of context adds to that.
    begin_ms: what a draft takes in addition to `token_ms` for each of its tokens, since the target has displaced the
        model's weights from the processor's cache and the number of rows changes in the first passes.

    A filter over three factors, for tokens, reading and beginnings, corrects the measurements with every draft. It
    returns to them while the model is not asked.
    """

    token_ms: float
    row_ms: float = 0.0
    context_ms: float = 0.0
    begin_ms: float = 0.0
    _filter: KalmanFilter = field(init=False, compare=False, repr=False)
    _slowness: DraftTime = field(init=False, compare=False, repr=False)  # actual over measured times

    def __post_init__(self) -> None:
        shares = np.eye(len(DraftTime()))
        self._filter = KalmanFilter(SPREAD**2 * (TOGETHER + (1 - TOGETHER) * shares), FORGET, DOUBT)
        for share in shares:
            self._filter.update(share, 0.0)  # each measurement counts as one observed time
        self._believe()

    def pass_ms(self, num_requests: int) -> float:
        """The time of a pass that generates a token for each of several requests."""
        tokens, reading, _ = self._slowness
        return tokens * self.token_ms + (num_requests - 1) * reading * self.row_ms

    def feeding_ms(self, num_tokens: int) -> float:
        """The time in which it reads `num_tokens`; many tokens are assumed to be its whole context."""
        return self.feedings_ms(num_tokens, num_tokens)[0]

    def feedings_ms(self, first: int, last: int) -> list[float]:
        """As `feeding_ms`, for each number of tokens from `first` to `last`."""
        slowness = self._slowness.reading_ms
        row_ms, context_ms = slowness * self.row_ms, slowness * self.context_ms / 2
        return [n * (row_ms + context_ms * n) for n in range(first, last + 1)]

    def beginning_ms(self) -> float:
        """The time that a draft takes beyond that of its tokens."""
        return self._slowness.beginning_ms * self.begin_ms

    def observe(self, expected: DraftTime, measured_ms: float) -> None:
        """Learn from the time that the passes for drafts took."""
        if expected.total_ms > 0 and measured_ms > 0:
            shares = np.array(expected) / expected.total_ms
            self._filter.update(shares, math.log(measured_ms / expected.total_ms))
            self._believe()

    def forget(self, passes: int = 1) -> None:
        """Return a little to the measured costs, after passes in which it was not asked."""
        self._filter.forget(passes)
        self._believe()

    def refined(self) -> DraftCost:
        """The same with costs corrected downwards only: a model that seemed too slow would not be asked, and the error
        would never be found."""
        tokens, reading, beginning = (min(1.0, slowness) for slowness in self._slowness)
        return replace(
            self,
            token_ms=tokens * self.token_ms,
            row_ms=reading * self.row_ms,
            context_ms=reading * self.context_ms,
            begin_ms=beginning * self.begin_ms,
        )

    def _believe(self) -> None:
        """Update the current estimates from the filter."""
        self._slowness = DraftTime(*map(math.exp, self._filter.mean))
