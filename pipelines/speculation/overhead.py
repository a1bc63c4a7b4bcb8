"""Overhead: the time that Python takes for a pass, beside the models."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

REMEMBERED = 31  # times, the middle one of which counts
FEWEST = 3  # times that are believed: the first of a process are far too long
RELAX = 0.95  # what becomes of a price in a pass in which it was too high to be paid


@dataclass(slots=True)
class Usual:
    """The median of the latest times, which bursts of noise do not move, or while these are few the least of them.
    Zero where nothing is known."""

    value: float = 0.0
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    is_doubted: bool = False

    @property
    def is_known(self) -> bool:
        return len(self._seen) >= FEWEST

    def add(self, value: float) -> None:
        if self.is_doubted:
            self._seen.extend([value] * REMEMBERED)
            self.is_doubted = False
        self._seen.append(max(0.0, value))
        if self.is_known:
            self.value = sorted(self._seen)[len(self._seen) // 2 if len(self._seen) > 2 * FEWEST else 0]

    def doubt(self) -> None:
        """Believe in a little less, where so much keeps anything from being seen; what is seen next counts alone."""
        self.value *= RELAX
        self.is_doubted = True


@dataclass(slots=True)
class Overhead:
    """In milliseconds: what each request of a pass takes where nothing is drafted for it, what asking its drafters and
    planning adds, whether or not anything comes of it, and what each row of a draft adds."""

    request: Usual = field(default_factory=Usual)
    asking: Usual = field(default_factory=Usual)
    row: Usual = field(default_factory=Usual)

    def observe_asking(self, num_asked: int, took_ms: float) -> None:
        """Learn from asking the drafters of so many requests, all in all."""
        if num_asked:
            self.asking.add(took_ms / num_asked)

    def observe_rest(self, num_requests: int, num_drafted: int, took_ms: float) -> None:
        """Learn from what a pass with drafts of so many tokens took beside the models and asking."""
        if not num_drafted:
            self.request.add(took_ms / num_requests)
        elif self.request.is_known:
            self.row.add((took_ms - num_requests * self.request.value) / num_drafted)
