"""Insight: how drafts fared by depth, and how many tokens were drafted for each pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from outrider.pipelines.engine.trace import TARGET, PassRecord


@dataclass(frozen=True, slots=True)
class Insight:
    """Counts over passes that wrote tokens.

    tested, accepted: by depth, counted from 1, the drafted tokens that the target got to, and those it kept. What lies
    behind a rejected token, or behind the end of the answer, was never tested.
    lengths: passes by the number of drafted tokens. drafted: tokens by drafter.
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
    """What the passes of one answer show."""
    insight = Insight()
    for record in trace:
        if not record.sources:  # only read a part of the prompt
            continue
        rejected = TARGET in record.sources and record.num_accepted < len(record.drafted)
        insight.accepted.update(range(1, record.num_accepted + 1))
        insight.tested.update(range(1, record.num_accepted + rejected + 1))
        insight.lengths[len(record.drafted)] += 1
        insight.drafted.update(record.drafted)
    return insight
