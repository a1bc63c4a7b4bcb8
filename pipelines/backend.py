"""Backend: what runs the requests of a pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from threading import RLock

from .sequence import CANCELLED, Sequence


class Backend(ABC):
    """`Engine` on the CPU, `GenaiEngine` on every other device.

    Whoever waits for a sequence calls `step` until it is finished; calls from several threads take turns, and each
    serves everybody. So what a sequence has come to is read under the `lock`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Sequence] = deque()
        self.lock = RLock()

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises CacheTooSmall and whatever else could not run even alone."""
        self._check(sequence)
        with self.lock:
            self._waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence at once and free what it holds; a finished one is left as it is."""
        with self.lock:
            if not sequence.finished:
                sequence.finish_reason = CANCELLED
                self._retire(sequence)

    @abstractmethod
    def step(self) -> None:
        """Bring the running sequences on: new tokens, the end or an error."""

    @abstractmethod
    def _check(self, sequence: Sequence) -> None:
        """Raise where a sequence could not even run alone."""

    @abstractmethod
    def _retire(self, sequence: Sequence) -> None:
        """Let go of a sequence that has ended, waiting or running."""
