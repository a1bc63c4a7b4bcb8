"""Which windows draw a growing answer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Drawing:
    """The events that draw growing answers, by the window that they draw in. Thread-safe.

    What a window turns to has to be drawn after all that they draw, or a late drawing would bring back what it left.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_events: Counter[str] = Counter()
        self._followed: dict[str, int] = {}

    @contextmanager
    def by(self, visitor: str) -> Iterator[None]:
        """Hold this while an event draws in a visitor's window."""
        with self._changed:
            self._num_events[visitor] += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_events[visitor] -= 1
                self._num_events += Counter()  # without those that are at zero
                self._changed.notify_all()

    def follow(self, visitor: str, turn: int) -> None:
        """From now on the window shows how an answer grows that another window asked for."""
        with self._changed:
            self._followed[visitor] = turn

    def goes_on(self, visitor: str, turn: int, after_s: float) -> bool:
        """Whether the window still follows this answer after `after_s` seconds; returns at once if it does not."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._followed.get(visitor) != turn, after_s)

    def leave(self, visitor: str, patience_s: float = 0.0) -> None:
        """Follow nothing any more, and wait until nothing is drawn in the window, for `patience_s` seconds at most."""
        with self._changed:
            self._followed.pop(visitor, None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._num_events[visitor], patience_s)
