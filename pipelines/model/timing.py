"""Timing: the shortest time of a pass, over as many repeats as there is time for."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Protocol

FEWEST_REPEATS, MOST_REPEATS, MOST_IF_WILD = 2, 12, 48
# The second shortest time over the shortest: up to CONFIRMED the shortest is believed, beyond WILD it is useless.
CONFIRMED, WILD = 1.2, 3.0

# Additional error of a time that was taken only once, and of one that includes compiling kernels, as standard
# deviations of its logarithm.
ONCE, UNPREPARED = 0.15, 0.3


class NoMeasurement(Exception):
    """The clock gave impossible times: zero, negative, or wildly scattered."""


class Run(Protocol):
    """Runs a pass of one window of `rows` rows after `context` cached tokens, whatever their content."""

    def __call__(self, rows: int, context: int) -> object: ...


@dataclass(slots=True, eq=False)
class Timing:
    """Times of passes of `rows` rows after `context` tokens.

    num_needed: passes to run even if time is up.
    before: called before each timed pass, while there is time.
    """

    run: Run
    rows: int
    context: int
    num_needed: int = 0
    before: Callable[[], object] | None = None
    _prepared_ms: float | None = None  # of a pass that also compiled kernels: used only if there is no other
    _times: list[float] = field(default_factory=list)  # ascending

    def again(self, is_over: Callable[[], bool]) -> None:
        """Run a pass that compiles kernels, and one that is timed."""
        if is_over() and self._num_run >= self.num_needed:
            return
        self._prepared_ms = self._pass_ms()
        if is_over() and self._num_run >= self.num_needed:
            return
        if self.before is not None and not is_over():
            self.before()
            if is_over() and self._num_run >= self.num_needed:
                return
        insort(self._times, self._pass_ms())

    @property
    def ms(self) -> float | None:
        """The shortest time, since other programs only ever add to it; None if no pass was run."""
        return self._times[0] if self._times else self._prepared_ms

    @property
    def doubt(self) -> float:
        """The additional error of `ms`, as a standard deviation of its logarithm."""
        if not self._times or self._is_wild:
            return UNPREPARED
        return ONCE if len(self._times) == 1 else 0.0

    @property
    def is_open(self) -> bool:
        """Whether the shortest time still has to be confirmed by a second one."""
        if len(self._times) < FEWEST_REPEATS:
            return True
        most = MOST_IF_WILD if self._is_wild else MOST_REPEATS
        return self._times[1] > CONFIRMED * self._times[0] and len(self._times) < most

    def check(self) -> None:
        """Raises NoMeasurement."""
        is_zero = self.ms is not None and self.ms <= 0
        if is_zero or (self._is_wild and not self.is_open):
            times = ", ".join(f"{ms:.3g}" for ms in self._times)
            raise NoMeasurement(f"Passes of {self.rows} rows took {times} ms.")

    @property
    def _is_wild(self) -> bool:
        return len(self._times) > 1 and self._times[1] > WILD * self._times[0]

    @property
    def _num_run(self) -> int:
        return len(self._times) + (self._prepared_ms is not None)

    def _pass_ms(self) -> float:
        began = time.perf_counter()
        self.run(self.rows, self.context)
        return 1e3 * (time.perf_counter() - began)


def take(timings: SequenceOf[Timing], budget_s: float) -> None:
    """Run passes for at most `budget_s` seconds, beyond that only needed ones. Timings take turns, in order, because
    noise comes in bursts. Raises NoMeasurement."""
    until = time.perf_counter() + budget_s

    def is_over() -> bool:
        return time.perf_counter() >= until

    is_first = True
    while (pending := [timing for timing in timings if timing.is_open]) and (is_first or not is_over()):
        for timing in pending:
            timing.again(is_over)
        is_first = False
    for timing in timings:
        timing.check()
