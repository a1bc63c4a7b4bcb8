"""Figures: the speed of one run, computed from its passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from outrider.pipelines.engine.trace import TARGET, PassRecord

Trace = Sequence[PassRecord]


@dataclass(frozen=True, slots=True)
class Figures:
    """The speed of one request, or of several answered together. Figures are None where a quotient is undefined.

    tokens_per_s: after the first token; of a batch all tokens by all of its time.
    ttft_ms: until the first token; of a batch the median.
    tpot_ms: time per token after the first, of one answer.
    tokens_per_pass: that an answer gets from a pass of the target after the first token.
    acceptance: accepted by drafted tokens.
    outside: share of the time that was spent in neither model.
    """

    new_tokens: int
    tokens_per_s: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    tokens_per_pass: float | None
    acceptance: float | None
    outside: float

    @classmethod
    def of(cls, traces: Sequence[Trace], began: float, ended: float) -> Figures:
        """From the traces of requests that began at `began` and ended by `ended`, in seconds of perf_counter."""
        written = [[record for record in trace if record.sources] for trace in traces]
        new_tokens = sum(len(record.sources) for trace in written for record in trace)
        later = sum(len(record.sources) for trace in written for record in trace[1:])
        passes = sum(len(trace[1:]) for trace in written)
        writing_s = sum(trace[-1].ended - trace[0].ended for trace in written if trace)
        drafted = sum(len(record.drafted) for trace in traces for record in trace)
        accepted = sum(record.num_accepted for trace in traces for record in trace)
        together = {record.began: record for trace in traces for record in trace}  # counts each shared pass once
        inside = sum(record.target_s + record.draft_s for record in together.values())
        rate_s = ended - began if len(traces) > 1 else writing_s
        return cls(
            new_tokens=new_tokens,
            tokens_per_s=_ratio(new_tokens if len(traces) > 1 else later, rate_s),
            ttft_ms=1e3 * median(trace[0].ended - began for trace in written) if all(written) else None,
            tpot_ms=_ratio(1e3 * writing_s, later),
            tokens_per_pass=_ratio(later, passes),
            acceptance=_ratio(accepted, drafted),
            outside=max(0.0, 1 - inside / (ended - began)),
        )


def accepted_by_depth(traces: Iterable[Trace]) -> Mapping[str, list[tuple[int, int]]]:
    """For each drafter and each place in the draft, the first being 0: how many tokens were judged, and kept.

    Tokens after the first rejected one were not judged.
    """
    counts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in (record for trace in traces for record in trace if record.sources):
        for depth, drafter in enumerate(record.drafted[: record.num_accepted + 1]):
            kept = depth < record.num_accepted
            if not kept and record.sources[-1] != TARGET:
                break  # the answer ended with an accepted token
            seen = counts[drafter]
            seen += [(0, 0)] * (depth + 1 - len(seen))
            seen[depth] = (seen[depth][0] + 1, seen[depth][1] + kept)
    return dict(counts)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
