"""Statistics of drafting: acceptance by depth, tokens drafted per pass, and tokens by drafter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider.pipelines.engine.trace import TARGET, PassRecord


@dataclass(frozen=True, slots=True)
class Insight:
    """Counts over the passes that wrote tokens.

    tested, accepted: by depth from 1, the drafted tokens that the target tested, and those it accepted. Tokens after a
    rejected one, or after the end of the answer, are not tested.
    lengths: passes by number of drafted tokens. drafted: drafted tokens by drafter.
    """

    tested: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    drafted: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Insight) -> Insight:
        return Insight(
            self.tested + other.tested,
            self.accepted + other.accepted,
            self.lengths + other.lengths,
            self.drafted + other.drafted,
        )


def insight_of(trace: Iterable[PassRecord]) -> Insight:
    """The counts of the passes of one answer."""
    insight = Insight()
    for record in trace:
        if not record.sources:  # a pass of the prefill
            continue
        rejected = TARGET in record.sources and record.num_accepted < len(record.drafted)
        insight.accepted.update(range(1, record.num_accepted + 1))
        insight.tested.update(range(1, record.num_accepted + rejected + 1))
        insight.lengths[len(record.drafted)] += 1
        insight.drafted.update(record.drafted)
    return insight
