"""Traces and runs made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.app.bench.figures import Figures
from outrider.app.bench.measure import Run
from outrider.app.bench.task import Task
from outrider.pipelines import Generation, Span
from outrider.pipelines.engine.trace import TARGET, PassRecord, Statistics


def record(
    began: float,
    ended: float,
    kept: Sequence[str] = (),
    drafted: Sequence[str] = (),
    target_s: float = 0.0,
    draft_s: float = 0.0,
) -> PassRecord:
    return PassRecord(began, ended, target_s, draft_s, 1 + len(drafted), tuple(drafted), tuple(kept))


def run(task: Task, mode: str, token_ids: Sequence[int], seconds: float = 1.0, drafter: str = "suffix") -> Run:
    """One answer whose first token took a tenth of a second, and all others `seconds` together."""
    drafted = () if mode == "off" else (drafter,) * (len(token_ids) - 2)
    trace = (
        record(0.0, 0.1, [TARGET], target_s=0.1),
        record(0.1, 0.1 + seconds, [*drafted, *[TARGET] * (len(token_ids) - 1 - len(drafted))], drafted, seconds),
    )
    spans = (Span("<b>", TARGET), Span("def", drafter if drafted else TARGET))
    statistics = Statistics.of(trace, 0.0, 5, 0)
    generation = Generation("<b>def", tuple(token_ids), (), spans, "stop", statistics, trace)
    return Run(task, mode, (generation,), Figures.of([trace], 0.0, 0.1 + seconds))
