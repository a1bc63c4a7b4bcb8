"""DraftCost: predicts the time that a model which drafts takes on this machine, in milliseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from .kalman_filter import KalmanFilter

FORGET = 0.0013  # share of the correction that is forgotten in each pass in which it is not asked, so it is asked again
DOUBT = 0.2  # see `KalmanFilter`
SPREAD = 0.7  # standard deviation of the logarithm of actual over measured times


@dataclass(slots=True)
class DraftCost:
    """What a draft model or a head takes.

    token_ms: to generate a token.
    row_ms: to read a token that it has to catch up with.
    context_ms: what each token of context adds to that.
    begin_ms: what the first token of a draft takes beyond `token_ms`.

    A filter over one factor corrects the measurements with every pass. It returns to them while the model is not asked.
    """

    token_ms: float
    row_ms: float = 0.0
    context_ms: float = 0.0
    begin_ms: float = 0.0
    _filter: KalmanFilter = field(init=False, compare=False, repr=False)
    _slowness: float = field(init=False, compare=False, repr=False)  # actual over measured time

    def __post_init__(self) -> None:
        self._filter = KalmanFilter(np.array([[SPREAD**2]]), FORGET, DOUBT)
        self._filter.update(np.ones(1), 0.0)  # the measurement counts as one observed time
        self._slowness = 1.0

    def pass_ms(self, num_requests: int) -> float:
        """The time of a pass that generates a token for each of several requests."""
        return self._slowness * (self.token_ms + (num_requests - 1) * self.row_ms)

    def feeding_ms(self, num_tokens: int) -> float:
        """The time in which it reads `num_tokens`; many tokens are assumed to be its whole context."""
        return self.feedings_ms(num_tokens, num_tokens)[0]

    def feedings_ms(self, first: int, last: int) -> list[float]:
        """As `feeding_ms`, of each number of tokens from `first` to `last`."""
        row_ms, context_ms = self._slowness * self.row_ms, self._slowness * self.context_ms / 2
        return [n * (row_ms + context_ms * n) for n in range(first, last + 1)]

    def beginning_ms(self) -> float:
        """The time that the first token of a draft takes beyond that of another one."""
        return self._slowness * self.begin_ms

    def observe(self, expected_ms: float, measured_ms: float) -> None:
        """Learn from a pass."""
        if expected_ms > 0 and measured_ms > 0:
            self._filter.update(np.ones(1), math.log(measured_ms / expected_ms))
            self._slowness = math.exp(self._filter.mean[0])

    def forget(self, passes: int = 1) -> None:
        """Return a little to the measured costs, after passes in which it was not asked."""
        self._filter.forget(passes)
        self._slowness = math.exp(self._filter.mean[0])

    def refined(self) -> DraftCost:
        """With costs corrected downwards only: if it seemed too slow, it would not be asked, and the error would never
        be found out."""
        quick = min(1.0, self._slowness)
        return replace(
            self,
            token_ms=quick * self.token_ms,
            row_ms=quick * self.row_ms,
            context_ms=quick * self.context_ms,
            begin_ms=quick * self.begin_ms,
        )
