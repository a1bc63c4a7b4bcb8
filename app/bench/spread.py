"""Spread: the median and quartiles over prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """The median and the quartiles of `count` values."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """The spread of the values that are not None; None if there are none."""
        there = [value for value in values if value is not None]
        if not there:
            return None
        low, middle, high = np.percentile(there, (25, 50, 75)).tolist()
        return cls(middle, low, high, len(there))

    @classmethod
    def of_ratios(cls, values: Iterable[float | None], to: Iterable[float | None]) -> Spread | None:
        """The spread of quotients of paired values, such as those of two modes on the same prompt."""
        pairs = zip(values, to, strict=True)
        return cls.of(a / b if a is not None and b else None for a, b in pairs)
