"""Drafters whose odds are known and a planner over them, for the tests of who drafts how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from outrider.pipelines.calibration import Calibration, Evidence
from outrider.pipelines.cost import CostModel
from outrider.pipelines.drafters.base import Chain, Opinion, Proposal
from outrider.pipelines.drafting import Drafting
from outrider.pipelines.planner import Planner
from outrider.pipelines.turn import Turn

from .fakes import request

ROWS = (2, 3, 4, 6, 9, 33)


class Odds(Calibration):
    """Believes what a proposal says of itself, and learns nothing."""

    def estimate(self, evidence: Evidence) -> float:
        if evidence.kind in ("agreed", "doubted", "mended"):
            return {"agreed": 0.97, "doubted": 0.2, "mended": 0.8}[evidence.kind]
        return evidence.features[0]

    def observe(self, evidence: Evidence, kept: bool) -> None:
        pass


class Offering:
    """Offers tokens of given odds to each sequence."""

    def __init__(self, name: str, odds: dict) -> None:
        self.name = name
        self.odds = odds
        self.num_taken = 0

    def propose(self, sequence, ahead=()) -> Iterator[Proposal]:
        for estimate in self.odds[sequence][len(ahead) :]:
            yield self._proposal(estimate)

    def release(self, sequence) -> None:
        self.odds.pop(sequence, None)

    def _proposal(self, estimate: float) -> Proposal:
        self.num_taken += 1
        return Proposal(7, self.name, Evidence(self.name, (estimate,)))


class Writing(Offering):
    """The same, as a model does: one token for each of several sequences a pass.

    A pass takes `slowness` times what `cost` was told that it takes, by the `clock` of the model itself.
    """

    num_passes = 0
    clock_s = 0.0
    slowness = 1.0
    cost: CostModel | None = None

    def clock(self) -> float:
        return self.clock_s

    def write(self, wanted) -> list[Proposal | None]:
        self._run(wanted)
        left = [self.odds[sequence][len(ahead) :] for sequence, ahead in wanted]
        return [self._proposal(estimates[0]) if estimates else None for estimates in left]

    def read(self, wanted) -> list[list[Opinion] | None]:
        self._run(wanted)
        return [self._opinions(self.odds[sequence][: len(ahead) + 1]) for sequence, ahead in wanted]

    def _opinions(self, estimates) -> list[Opinion]:
        """Below even odds it would write another token."""
        made = [replace(self._proposal(e), token=7 if e > 0.5 else 5) for e in estimates]
        return [Opinion(proposal, 4 * e - 2) for proposal, e in zip(made, estimates, strict=True)]

    def num_behind(self, sequence, ahead=()) -> int:
        return 1

    def _run(self, wanted) -> None:
        self.num_passes += 1
        if self.cost is not None:
            quick = replace(self.cost)  # which has learnt nothing
            took_ms = quick.draft_pass_ms(len(wanted))
            took_ms += sum(quick.feeding_ms(self.num_behind(*each) - 1) for each in wanted)
            self.clock_s += self.slowness * took_ms / 1e3


class Behind(Writing):
    """One that has so many tokens to be fed before its first proposal."""

    def __init__(self, name: str, odds: dict, missed: int) -> None:
        super().__init__(name, odds)
        self.missed = missed

    def _run(self, wanted) -> None:
        super()._run(wanted)
        self.missed = 0

    def num_behind(self, sequence, ahead=()) -> int:
        return 1 + self.missed


def cost_of(base: list[float], draft_ms: float = 0.0) -> CostModel:
    return CostModel(ROWS, tuple(base), (0.0,) * len(ROWS), draft_ms=draft_ms)


def turn_of(**options) -> Turn:
    return Turn(request([1, 2, 3], 99, **{"mode": "auto", "num_assistant_tokens": None, **options}), 2, 32)


def planner_of(cost: CostModel | None, text: Offering, model: Writing | None = None) -> Planner:
    both = Chain((text,), model)
    modes = {"off": Chain(), "suffix": Chain((text,)), "chained": both, "auto": both}
    if model is None:
        return Planner(Drafting(modes, Odds(), 12), Odds(), cost)
    model.cost = cost
    return Planner(Drafting(modes, Odds(), 12, model.clock), Odds(), cost)


BASES = st.lists(st.floats(0.05, 10), min_size=len(ROWS), max_size=len(ROWS)).map(
    lambda steps: [10 + sum(steps[: i + 1]) for i in range(len(steps))]
)
