"""How often a growing answer is rendered."""

from __future__ import annotations

import math
import time

REDRAW_S = 0.25  # rendering takes time from the model, in the server and in the browser


class Redraw:
    """Limits the rate of rendering: call `is_due` whenever there is more to render."""

    def __init__(self) -> None:
        self._drawn = -math.inf

    def is_due(self, at_once: bool = False) -> bool:
        """Whether to render now: with `at_once`, or if the last time was more than REDRAW_S ago."""
        now = time.monotonic()
        due = at_once or now - self._drawn > REDRAW_S
        if due:
            self._drawn = now
        return due
