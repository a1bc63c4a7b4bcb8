"""Trace: a record of each pass, from which all statistics are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..config import EXACT

TARGET = "target"  # the source of a token that no drafter proposed


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One request's part in one pass of the target, which may serve others too. Times are in seconds.

    began, ended: by `time.perf_counter`, drafting included.
    target_s, draft_s: the time of the target, and of the models that draft, for all requests of the pass.
    num_rows: rows of this request in the target's pass.
    drafted: who proposed each token of the draft.
    sources: who proposed each kept token; TARGET if nobody did.
    """

    began: float
    ended: float
    target_s: float
    draft_s: float
    num_rows: int = 0
    drafted: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def num_accepted(self) -> int:
        return sum(source != TARGET for source in self.sources)


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of one request, times in seconds.

    cached_tokens: tokens of the prompt that were taken over from earlier requests.
    ttft_s, tokens_per_s: the time to the first token, and the rate after it; None before there is one.
    drafted_by, accepted_by: tokens by drafter; "earlier_turn" are those copied from earlier turns of a conversation.
    target_s, draft_s: time in the target's passes and in the models that draft; the rest of total_s is everything else.
    acceptance: the rule by which drafted tokens were kept; the answer is lossy unless it is "exact".
    """

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    passes: int
    drafted: int
    accepted: int
    drafted_by: Mapping[str, int]
    accepted_by: Mapping[str, int]
    ttft_s: float | None
    tokens_per_s: float | None
    target_s: float
    draft_s: float
    total_s: float
    acceptance: str = EXACT

    @property
    def lossy(self) -> bool:
        """Whether drafts may have changed the answer."""
        return self.acceptance != EXACT

    @classmethod
    def of(
        cls,
        trace: Sequence[PassRecord],
        began: float,
        prompt_tokens: int,
        cached_tokens: int,
        acceptance: str = EXACT,
    ) -> Statistics:
        """Compute the figures from a request's trace. `began` is when it was submitted."""
        writing = [record for record in trace if record.sources]
        first = writing[0] if writing else None
        later = sum(len(record.sources) for record in writing[1:])
        drafted_by = Counter(source for record in trace for source in record.drafted)
        accepted_by = Counter(source for record in trace for source in record.sources if source != TARGET)
        return cls(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            new_tokens=sum(len(record.sources) for record in writing),
            passes=len(trace),
            drafted=drafted_by.total(),
            accepted=accepted_by.total(),
            drafted_by=dict(drafted_by),
            accepted_by=dict(accepted_by),
            ttft_s=first.ended - began if first else None,
            tokens_per_s=later / (writing[-1].ended - first.ended) if first and later else None,
            target_s=sum(record.target_s for record in trace),
            draft_s=sum(record.draft_s for record in trace),
            total_s=trace[-1].ended - began if trace else 0.0,
            acceptance=acceptance,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
