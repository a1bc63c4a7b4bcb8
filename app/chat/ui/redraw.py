"""Redraw: how often what grows is drawn."""

from __future__ import annotations

import math
import time

REDRAW_S = 0.25  # server and browser take the time for it from the model


class Redraw:
    """Asked each time that there is more to draw."""

    def __init__(self) -> None:
        self._drawn = -math.inf

    def is_due(self, at_once: bool = False) -> bool:
        """Whether to draw now: `at_once`, or because the last time is long enough ago."""
        now = time.monotonic()
        due = at_once or now - self._drawn > REDRAW_S
        if due:
            self._drawn = now
        return due
