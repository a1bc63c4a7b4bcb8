"""How well the planner decides, apart from the noise of this machine.

    python -m tests.benchmark.planning [--scale 2] [--pair PAIR] [--mode auto]

Answers of the embedded pair by a clock of its own: a pass of the target, one of the draft model and what Python does
take the times below, which the planner knows and does not learn any more. Passes of another pair take what was measured
and remembered of them on this machine. Acceptance is learnt from answer to answer. The figures are the same in every
run, so that two states of the planner can be compared. Small changes of a plan change all that follows: differences
below 3% mean little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from outrider.app.bench.prompts import shipped_tasks
from outrider.models import embedded_pair
from outrider.pipelines import LLMPipeline
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import Draft
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.overhead import Overhead, Usual
from outrider.pipelines.speculation.planner import Planner

# Milliseconds, of the embedded pair on an AMD EPYC of the fourth generation while nothing else runs.
PASSES = {
    1: 0.60, 2: 0.66, 3: 0.68, 4: 0.70, 5: 0.76, 6: 0.80, 7: 0.84, 8: 0.88, 9: 0.95, 12: 1.08, 13: 1.16, 16: 1.22,
    17: 1.38, 24: 1.60, 25: 1.75, 32: 1.95, 33: 2.20, 64: 3.40,
}  # fmt: skip
CHANGE = 0.55
DRAFTS = {"draft_model": DraftCost(0.33, 0.02), "head": DraftCost(0.40, 0.02)}
PYTHON = {"request": 0.15, "asking": 0.09, "offering": 0.008, "considering": 0.03, "row": 0.012, "reading": 0.01}

TOKENS = 96  # of an answer at most
MODES = ["suffix", "draft", "auto"]
KINDS: Sequence[tuple[str, dict[str, Any]]] = (
    ("edit", {}),
    ("complete", {}),
    ("edit", {"do_sample": True, "temperature": 1.0}),
    ("complete", {"do_sample": True, "temperature": 1.0}),
    ("complete", {"do_sample": True, "temperature": 2.0}),
    ("complete", {"do_sample": True, "temperature": 3.0}),
)


class Fixed(Usual):
    """A time that is known and not learnt."""

    is_known = True

    def add(self, value: float) -> None:
        pass


@dataclass(slots=True)
class Account:
    """What passes have taken, counted apart from the planner's own books."""

    cost: CostModel
    overhead: Overhead
    num_passes: int = 0
    ms: float = 0.0
    last_rows: int = 0

    def add(self, drafts: Sequence[Draft], rows: int) -> None:
        """Count a pass of so many rows, of which some fill it, with these drafts."""
        cost, rows, python = self.cost, max(rows, self.cost.rows[0]), self.overhead
        self.num_passes += 1
        self.ms += cost.size_ms(rows) + (rows != self.last_rows) * cost.change_ms
        self.ms += cost.pass_ms((draft.rows, draft.context) for draft in drafts)
        self.ms -= cost.size_ms(sum(draft.rows for draft in drafts))  # what is left is attention
        self.last_rows = rows
        for draft in drafts:
            self.ms += draft.draft_ms + python.request.value + len(draft.proposals) * python.row.value
            if draft.offers:
                self.ms += python.asking.value + draft.num_further * python.offering.value


def usual_cost(scale: float) -> CostModel:
    """The times above."""
    costs = tuple(scale * ms for ms in PASSES.values())
    drafts = {name: DraftCost(*(scale * ms for ms in (draft.token_ms, draft.row_ms))) for name, draft in DRAFTS.items()}
    return CostModel(tuple(PASSES), costs, (0.0002 * scale,) * len(costs), drafts, change_ms=scale * CHANGE)


def follow(planner: Planner, cost: CostModel) -> Account:
    """Give the planner these times, and count what its passes take."""
    planner.cost = cost
    planner.overhead = Overhead(**{each.name: Fixed(PYTHON[each.name]) for each in fields(Overhead)})
    planner._clock = planner._drafters._clock = lambda: 0.0
    account, draft, fill, observe = Account(cost, planner.overhead), planner.draft, planner.fill, planner.observe
    of_pass: list[Draft] = []

    def draft_and_note(drafts: Sequence[Draft], *rows: float) -> None:
        of_pass[:] = drafts
        draft(drafts, *rows)

    def fill_and_count(num_rows: int) -> int:
        num_filling = fill(num_rows)
        account.add(of_pass, num_rows + num_filling)
        return num_filling

    planner.draft = draft_and_note  # type: ignore[assignment, method-assign]
    planner.fill = fill_and_count  # type: ignore[method-assign]
    planner.observe = lambda drafts, kept, *times: observe(drafts, kept, None)  # type: ignore[method-assign]
    return account


def rate(
    pair: Path | None, family: str, options: dict[str, Any], mode: str, scale: float, num_prompts: int | None
) -> tuple[float, float]:
    """Tokens per millisecond, and tokens a pass, of the first prompts of a family, prompts included."""
    pipeline = LLMPipeline(pair or embedded_pair(), exact=True)
    pipeline.warm_up()
    cost = pipeline.speculation.cost
    assert cost is not None
    account, num_tokens = follow(pipeline.speculation._planner, replace(cost) if pair else usual_cost(scale)), 0
    tasks = [task for task in shipped_tasks() if task.family == family]
    for seed, task in enumerate(tasks[:num_prompts]):
        asked = {"max_new_tokens": TOKENS, "mode": mode, **options} | ({"rng_seed": seed} if options else {})
        answer = pipeline.generate(task.prompts[0], **asked)
        num_tokens += sum(each.new_tokens for each in answer.stats)
    return num_tokens / account.ms, num_tokens / account.num_passes


def main(
    scale: Annotated[float, typer.Option(help="Times of passes, as multiples of those of the embedded pair.")] = 1.0,
    pair: Annotated[Path | None, typer.Option(help="Another pair, with the times that it takes here.")] = None,
    mode: Annotated[list[str], typer.Option(help="A mode to compare; can be repeated.")] = MODES,
    prompts: Annotated[int | None, typer.Option(help="How many prompts of each kind; all by default.")] = None,
) -> None:
    """Compare the speed of drafting with plain decoding, by a clock without noise."""
    table = Table("prompts", *(f"{each}, over off" for each in mode), f"tokens a pass, {mode[-1]}")
    for family, options in KINDS:
        plain, _ = rate(pair, family, options, "off", scale, prompts)
        rates = [rate(pair, family, options, each, scale, prompts) for each in mode]
        name = f"{family} at temperature {options['temperature']:g}" if options else family
        table.add_row(name, *(f"{each / plain:.3f}" for each, _ in rates), f"{rates[-1][1]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
