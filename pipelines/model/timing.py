"""Timing: how long passes take, the fastest of several, as many as there is time for."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Protocol

FEWEST_REPEATS, MOST_REPEATS, MOST_IF_WILD = 2, 12, 48
CONFIRMED, WILD = 1.2, 3.0  # how many times the fastest the second may take, to be believed or to be of use

# How far a time may be from the true one, beyond what is usual, as a standard deviation of the logarithm: where it was
# taken once, and where that was while kernels were prepared.
ONCE, UNPREPARED = 0.15, 0.3


class NoMeasurement(Exception):
    """The clock gave times that cannot be: zero, negative, or wildly scattered."""


class Run(Protocol):
    """Runs a pass of one window of `rows` rows over `context` cached tokens, whatever they are."""

    def __call__(self, rows: int, context: int) -> object: ...


@dataclass(slots=True, eq=False)
class Timing:
    """Of passes of `rows` rows over `context` tokens.

    num_needed: passes that are run though time is up, as without them nothing can be said.
    before: runs before each pass that counts, while there is time.
    """

    run: Run
    rows: int
    context: int
    num_needed: int = 0
    before: Callable[[], object] | None = None
    _prepared_ms: float | None = None  # of a pass that prepared kernels: it counts where nothing else is known
    _times: list[float] = field(default_factory=list)  # ascending

    def again(self, is_over: Callable[[], bool]) -> None:
        """Run a pass that prepares kernels, and one that counts."""
        if is_over() and self._num_run >= self.num_needed:
            return
        self._prepared_ms = self._pass_ms()
        if is_over() and self._num_run >= self.num_needed:
            return
        if self.before is not None and not is_over():
            self.before()
        insort(self._times, self._pass_ms())

    @property
    def ms(self) -> float | None:
        """The fastest, as what else ran meanwhile is not the model's cost; None where no pass was run."""
        return self._times[0] if self._times else self._prepared_ms

    @property
    def doubt(self) -> float:
        if not self._times or self._is_wild:
            return UNPREPARED
        return ONCE if len(self._times) == 1 else 0.0

    @property
    def is_open(self) -> bool:
        """Whether the fastest is still to be confirmed by a second."""
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
    """Run passes for `budget_s` seconds at most, and those that are needed. The first timings come first, and then all
    take turns, as noise comes in bursts. Raises NoMeasurement."""
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
