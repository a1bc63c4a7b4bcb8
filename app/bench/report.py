"""Report: the results by family and mode, from which tables, plots and JSON are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.pipelines import EXACT
from outrider.pipelines.speculation.cost import CostModel

from .figures import accepted_by_depth
from .measure import PLAIN, Run, differing
from .spread import Spread


@dataclass(frozen=True, slots=True)
class Entry:
    """One mode on one family; the spreads are over its tasks, None where nothing could be measured.

    speedup: tokens per second divided by those of plain decoding on the same task.
    best_share: least possible time divided by the time taken, both by the cost model; for single requests only.
    differing: answers whose tokens were not those of plain decoding; not counted where lossy.
    lossy: whether drafts may have changed the answers; `mode` then says so, too.
    """

    family: str
    mode: str
    num_prompts: int
    tokens_per_s: Spread | None
    speedup: Spread | None
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    tokens_per_pass: Spread | None
    acceptance: Spread | None
    outside: Spread | None
    best_share: Spread | None
    differing: int
    by_depth: Mapping[str, list[tuple[int, int]]]
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """The answer to the first prompt of a family, in spans by drafter."""

    family: str
    mode: str
    spans: tuple[tuple[str, str], ...]  # (text, source)


@dataclass(frozen=True, slots=True)
class Report:
    """`about` is what `about.describe` tells; `exact` whether the device keeps the promise of the same tokens.

    pass_ms: (rows, milliseconds) of a pass over a short context, empty where nothing could be measured.
    acceptance: the rule by which the modes that draft keep tokens.
    draft_ms, begin_ms: milliseconds in which a model that drafts generates a token, and what the first token of a draft
        takes beyond that, by the drafter's name.
    interrupted: whether some prompts were not measured.
    """

    about: Mapping[str, Any]
    seed: int
    exact: bool
    entries: tuple[Entry, ...]
    samples: tuple[Sample, ...] = ()
    pass_ms: tuple[tuple[int, float], ...] = ()
    draft_ms: Mapping[str, float] = field(default_factory=dict)
    begin_ms: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=())
    acceptance: str = EXACT
    interrupted: bool = False

    @property
    def num_differing(self) -> int:
        return sum(entry.differing for entry in self.entries)

    @property
    def families(self) -> list[str]:
        return list(dict.fromkeys(entry.family for entry in self.entries))

    @property
    def modes(self) -> list[str]:
        return list(dict.fromkeys(entry.mode for entry in self.entries))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def entries(results: Sequence[Sequence[Run]], best_shares: Mapping[tuple[int, str], float]) -> Iterable[Entry]:
    """The entries for the runs of each task. `best_shares` has the key (index of the task, mode)."""
    wrong = [differing(runs) for runs in results]
    for family in dict.fromkeys(runs[0].task.family for runs in results):
        numbers = [i for i, runs in enumerate(results) if runs[0].task.family == family]
        plain = [_of(results[i], PLAIN).figures for i in numbers]
        for mode in [run.mode for run in results[numbers[0]]]:
            runs = [_of(results[i], mode) for i in numbers]
            figures = [run.figures for run in runs]
            rates = [f.tokens_per_s for f in figures]
            yield Entry(
                family=family,
                mode=runs[0].label,
                num_prompts=sum(len(run.task.prompts) for run in runs),
                tokens_per_s=Spread.of(rates),
                speedup=Spread.of_ratios(rates, [f.tokens_per_s for f in plain]),
                ttft_ms=Spread.of(f.ttft_ms for f in figures),
                tpot_ms=Spread.of(f.tpot_ms for f in figures),
                tokens_per_pass=Spread.of(f.tokens_per_pass for f in figures),
                acceptance=Spread.of(f.acceptance for f in figures),
                outside=Spread.of(f.outside for f in figures),
                best_share=Spread.of(best_shares.get((i, mode)) for i in numbers),
                differing=sum(wrong[i][mode] for i in numbers),
                by_depth=accepted_by_depth(g.trace for run in runs for g in run.generations),
                lossy=runs[0].lossy,
            )


def samples(results: Sequence[Sequence[Run]], mode: str) -> Iterable[Sample]:
    """The first answer of each family in a mode."""
    for family in dict.fromkeys(runs[0].task.family for runs in results):
        run = _of(next(runs for runs in results if runs[0].task.family == family), mode)
        yield Sample(family, run.label, tuple((span.text, span.source) for span in run.generations[0].spans))


def cost_curve(cost: CostModel | None) -> tuple[tuple[int, float], ...]:
    """(rows, milliseconds) where the cost model was measured, over a context of 256 tokens."""
    return () if cost is None else tuple((rows, cost.pass_ms([(rows, 256)])) for rows in cost.rows)


def _of(runs: Sequence[Run], mode: str) -> Run:
    return next(run for run in runs if run.mode == mode)
