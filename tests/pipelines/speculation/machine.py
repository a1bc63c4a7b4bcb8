"""A machine whose passes take what a test says."""

from __future__ import annotations

import time


class Clock:
    """A machine whose passes take what `takes(rows, context)` says, in milliseconds."""

    def __init__(self, monkeypatch, takes) -> None:
        self.now = 0.0
        self.takes = takes
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def run(self, rows: int, context: int) -> None:
        self.now += self.takes(rows, context) / 1e3
