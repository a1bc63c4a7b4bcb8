"""The time that drafting saved in one answer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from outrider.pipelines.engine.trace import TARGET, PassRecord

FEWEST_PLAIN = 4  # passes without a draft that are enough to measure their spread
SPREAD = 0.1  # assumed spread with fewer, as a fraction of a plain pass
FEWEST_DRAFTED = 3  # passes with drafts that are enough to say that they lost time


@dataclass(frozen=True, slots=True)
class TimeSaved:
    """What drafting cost, and the plain passes that it replaced.

    plain_ms: the estimated or measured time of a plain pass.
    plain_passes: by drafter, the number of plain passes for the same tokens. Where several drafters contributed to a
    pass it is divided among them.
    took_ms: by drafter, its share of the time of the passes with drafts.
    spread_ms: the typical deviation of a plain pass from `plain_ms` on this machine under its load.
    odd_ms: the part of `took_ms` by which passes took longer than such passes do, as the first of a process may.
    is_measured: whether plain passes of the same time tell what one takes. An estimate does not know whether the
        machine was busy, and then every pass seems to have lost time.
    """

    plain_ms: float
    plain_passes: Mapping[str, float]
    took_ms: Mapping[str, float]
    spread_ms: float = 0.0
    odd_ms: float = 0.0
    is_measured: bool = True

    @property
    def by_drafter(self) -> dict[str, float]:
        """Milliseconds saved; negative where drafting cost more time than it saved."""
        return {name: self.plain_ms * self.plain_passes[name] - took for name, took in self.took_ms.items()}

    @property
    def total_ms(self) -> float:
        return sum(self.by_drafter.values())

    @property
    def is_certain(self) -> bool:
        """Whether the difference exceeds the spread of plain passes, and a loss is not due to passes that took oddly
        long or to a busy machine."""
        spread_ms = self.spread_ms * sum(self.plain_passes.values())
        return self.total_ms > spread_ms or (self.is_measured and self.total_ms + self.odd_ms < -spread_ms)

    def at(self, plain_ms: float) -> TimeSaved:
        """The same figures with a measured time of a plain pass."""
        return replace(self, plain_ms=plain_ms, is_measured=True)


def time_saved_in(trace: Iterable[PassRecord], plain_ms: float) -> TimeSaved:
    """The time that drafting saved in one answer, if a plain pass takes `plain_ms`.

    A pass that wrote n tokens replaced n plain passes, so it saved the time of n - 1 of them, minus the time by which
    it, with drafting, was longer than a plain one. Each drafter is credited with a plain pass for each of its accepted
    tokens, and charged for the extra time in proportion to the tokens it drafted. Passes without a draft save nothing.

    Answers that are written at the same time share their passes, which then take longer, so that the result is too
    small.
    """
    trace = list(trace)
    plain_passes: defaultdict[str, float] = defaultdict(float)
    took_ms: defaultdict[str, float] = defaultdict(float)
    for record in trace:
        for source in record.drafted:
            share = 1 / len(record.drafted)
            plain_passes[source] += share
            took_ms[source] += share * 1e3 * (record.ended - record.began)
        for source in record.sources:
            if source != TARGET:
                plain_passes[source] += 1
        if record.drafted and TARGET not in record.sources:  # the answer ended within the draft: no token of the target
            plain_passes[record.sources[-1]] -= 1
    far_ms = _far_ms(trace, plain_ms)
    is_measured = len(far_ms) >= FEWEST_PLAIN
    spread_ms = median(far_ms) if is_measured else SPREAD * plain_ms
    return TimeSaved(plain_ms, dict(plain_passes), dict(took_ms), spread_ms, _odd_ms(trace), is_measured)


def _odd_ms(trace: Sequence[PassRecord]) -> float:
    """By how much the passes with drafts took longer than the fastest one of at least as many rows; all of their time
    if there are few, since the first passes of a process are far too long."""
    drafted = [(record.num_rows, 1e3 * (record.ended - record.began)) for record in trace if record.drafted]
    if len(drafted) < FEWEST_DRAFTED:
        return sum(took_ms for _, took_ms in drafted)
    odd_ms, least_ms = 0.0, math.inf
    for _, took_ms in sorted(drafted, key=lambda each: (-each[0], each[1])):
        least_ms = min(least_ms, took_ms)
        odd_ms += took_ms - least_ms
    return odd_ms


def _far_ms(trace: Sequence[PassRecord], plain_ms: float) -> list[float]:
    """How far the passes without a draft are from `plain_ms`, except the first, which is the prefill."""
    plain = [record for record in trace if record.sources][1:]
    return [abs(1e3 * (record.ended - record.began) - plain_ms) for record in plain if not record.drafted]
