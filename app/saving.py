"""Saving: the time that drafting saved in one answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from outrider.pipelines.trace import TARGET, PassRecord


@dataclass(frozen=True, slots=True)
class Saving:
    """Milliseconds by drafter; below zero where drafts cost more than they gave."""

    by_drafter: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_ms(self) -> float:
        return sum(self.by_drafter.values())


def saving_of(trace: Iterable[PassRecord], prompt_tokens: int, plain_ms: Callable[[int], float]) -> Saving:
    """What the drafts of one answer saved.

    A pass that kept n tokens did the work of n plain passes, so it saved the time of n - 1 of them, less what it took
    longer than a plain one, drafting included. Each drafter gets a plain pass for each of its tokens that was kept, and
    bears the extra time by its share of what was drafted. Passes without a draft save nothing.

    `plain_ms(context)` is what a plain pass costs over so many cached tokens. Where answers were written at the same
    time their passes are shared and take longer, which makes the saving look smaller than it was.
    """
    by_drafter: defaultdict[str, float] = defaultdict(float)
    num_tokens = prompt_tokens
    for record in trace:
        if record.drafted:
            plain = plain_ms(num_tokens - 1)
            extra = 1e3 * (record.ended - record.began) - plain
            for source in record.drafted:
                by_drafter[source] -= extra / len(record.drafted)
            for source in record.sources:
                if source != TARGET:
                    by_drafter[source] += plain
            if TARGET not in record.sources:  # the answer ended within the draft: one of its tokens was due anyway
                by_drafter[record.sources[-1]] -= plain
        num_tokens += len(record.sources)
    return Saving(dict(by_drafter))
