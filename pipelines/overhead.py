"""Overhead: the time that Python takes for a pass, beside the models."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

REMEMBERED = 31  # times, the middle one of which counts


@dataclass(slots=True)
class Usual:
    """The median of the latest times, which bursts of noise do not move. Zero where none is known."""

    value: float = 0.0
    _seen: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def is_known(self) -> bool:
        return bool(self._seen)

    def add(self, value: float) -> None:
        self._seen.append(max(0.0, value))
        self.value = sorted(self._seen)[len(self._seen) // 2]


@dataclass(slots=True)
class Overhead:
    """In milliseconds: what each sequence of a pass takes where nothing is drafted for it, what asking its drafters and
    planning adds, whether or not anything comes of it, and what each row of a draft adds."""

    sequence: Usual = field(default_factory=Usual)
    asking: Usual = field(default_factory=Usual)
    row: Usual = field(default_factory=Usual)

    def observe_asking(self, num_asked: int, took_ms: float) -> None:
        """Learn from asking the drafters of so many sequences, all in all."""
        if num_asked:
            self.asking.add(took_ms / num_asked)

    def observe_rest(self, num_sequences: int, num_drafted: int, took_ms: float) -> None:
        """Learn from what a pass with drafts of so many tokens took beside the models and asking."""
        if not num_drafted:
            self.sequence.add(took_ms / num_sequences)
        elif self.sequence.is_known:
            self.row.add((took_ms - num_sequences * self.sequence.value) / num_drafted)
