"""The time that drafting saved in one answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from outrider.pipelines.engine.trace import TARGET, PassRecord

FEWEST_PLAIN = 4  # passes without a draft by which their spread can be told
SPREAD = 0.1  # of a plain pass, where fewer were seen


@dataclass(frozen=True, slots=True)
class TimeSaved:
    """What drafts cost, and what plain passes they stood for.

    plain_ms: what a plain pass is taken to cost.
    plain_passes: by drafter, plain passes for the same tokens; of a pass that several served, by shares.
    took_ms: by drafter, its share of what the passes with drafts took.
    spread_ms: how far a plain pass may be from `plain_ms` on this machine, as busy as it was.
    """

    plain_ms: float
    plain_passes: Mapping[str, float]
    took_ms: Mapping[str, float]
    spread_ms: float = 0.0

    @property
    def by_drafter(self) -> dict[str, float]:
        """Milliseconds saved; below zero where drafts cost more than they gave."""
        return {name: self.plain_ms * self.plain_passes[name] - took for name, took in self.took_ms.items()}

    @property
    def total_ms(self) -> float:
        return sum(self.by_drafter.values())

    @property
    def is_certain(self) -> bool:
        """Whether more was saved, or lost, than plain passes can differ by themselves."""
        return abs(self.total_ms) > self.spread_ms * sum(self.plain_passes.values())

    def at(self, plain_ms: float) -> TimeSaved:
        """The same with another cost of a plain pass, such as a measured one."""
        return replace(self, plain_ms=plain_ms)


def time_saved_in(trace: Iterable[PassRecord], plain_ms: float) -> TimeSaved:
    """What the drafts of one answer saved, where a plain pass costs `plain_ms`.

    A pass that kept n tokens did the work of n plain passes, so it saved the time of n - 1 of them, less what it took
    longer than a plain one, drafting included. Each drafter gets a plain pass for each of its tokens that was kept, and
    bears the extra time by its share of what was drafted. Passes without a draft save nothing.

    Where answers were written at the same time their passes are shared and take longer, which makes the saving look
    smaller than it was.
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
        if record.drafted and TARGET not in record.sources:  # the answer ended within the draft: one token was due
            plain_passes[record.sources[-1]] -= 1
    return TimeSaved(plain_ms, dict(plain_passes), dict(took_ms), _spread_ms(trace, plain_ms))


def _spread_ms(trace: Sequence[PassRecord], plain_ms: float) -> float:
    """How far the passes without a draft commonly were from what one is taken to cost; the first read the prompt."""
    plain = [record for record in trace if record.sources][1:]
    far_ms = [abs(1e3 * (record.ended - record.began) - plain_ms) for record in plain if not record.drafted]
    return median(far_ms) if len(far_ms) >= FEWEST_PLAIN else SPREAD * plain_ms
