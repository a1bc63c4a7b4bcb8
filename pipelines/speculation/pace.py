"""Pace: how fast tokens came lately."""

from __future__ import annotations

from dataclasses import dataclass

REMEMBER = 0.9  # weight of the passes so far


@dataclass(slots=True)
class Pace:
    """The recent rate of all requests of a pass together, exponentially weighted."""

    tokens: float = 0.0
    time_ms: float = 0.0

    def add(self, tokens: int, time_ms: float) -> None:
        self.tokens = REMEMBER * self.tokens + tokens
        self.time_ms = REMEMBER * self.time_ms + time_ms

    @property
    def rate(self) -> float:
        """Tokens per millisecond; 0 before the first pass."""
        return self.tokens / self.time_ms if self.time_ms else 0.0
