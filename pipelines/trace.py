"""What happened in each pass. Every statistic is read off it, so nothing is counted twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One sequence's part in one pass of the target. Times are seconds of `time.perf_counter`."""

    began: float
    ended: float
    num_rows: int  # rows of the target's window
    num_drafted: int
    sources: tuple[str, ...]  # who proposed each kept token

    @property
    def num_accepted(self) -> int:
        return sum(source != "target" for source in self.sources)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of one request, times in seconds. `tokens_per_s` is the rate after the first pass that gave any."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, taken over from earlier requests
    new_tokens: int
    passes: int
    drafted: int
    accepted: int
    ttft_s: float | None
    tokens_per_s: float | None
    total_s: float

    @classmethod
    def of(cls, trace: Sequence[PassRecord], began: float, prompt_tokens: int, cached_tokens: int) -> Statistics:
        """Read the figures off a request's trace. `began` is when it was submitted."""
        writing = [record for record in trace if record.sources]
        first = writing[0] if writing else None
        later = sum(len(record.sources) for record in writing[1:])
        return cls(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            new_tokens=sum(len(record.sources) for record in writing),
            passes=len(trace),
            drafted=sum(record.num_drafted for record in trace),
            accepted=sum(record.num_accepted for record in trace),
            ttft_s=first.ended - began if first else None,
            tokens_per_s=later / (writing[-1].ended - first.ended) if first and later else None,
            total_s=trace[-1].ended - began if trace else 0.0,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
