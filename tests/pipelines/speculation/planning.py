"""A planner over drafters with known acceptance probabilities, for the tests of who drafts how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from random import Random

import numpy as np
from hypothesis import strategies as st

from outrider.pipelines.model.target import Window
from outrider.pipelines.speculation.acceptance import AcceptanceModel
from outrider.pipelines.speculation.budgets import TOLERANCE
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import Draft
from outrider.pipelines.speculation.draft_cost import DraftCost, DraftTime
from outrider.pipelines.speculation.drafter_set import DrafterSet
from outrider.pipelines.speculation.drafters.base import ModeDrafters
from outrider.pipelines.speculation.planner import Planner

from ..fakes import new_request
from .odds import Clock, Odds, OddsDrafter, OddsHead, OddsModel, Remembering

ROWS = (2, 3, 4, 6, 9, 33)


class Known(DraftCost):
    """That of a model which takes just that, so that there is nothing to learn."""

    def observe(self, expected: DraftTime, measured_ms: float) -> None:
        pass


@dataclass(frozen=True)
class Drafting:
    """A model that drafts, a head, a draft model or the target itself with some of its layers: what it takes, how deep
    it can draft, how much it has missed, and how long Python takes to hand it the target's states."""

    is_head: bool
    token_ms: float
    row_share: float
    begin_ms: float
    depth: int | None
    missed: int
    reading_ms: float

    @property
    def name(self) -> str:
        return "head" if self.is_head else "draft_model"

    @property
    def cost(self) -> DraftCost:
        return Known(self.token_ms, self.row_share * self.token_ms, begin_ms=self.begin_ms)

    def of(self, odds: dict, clock: Clock) -> Remembering:
        if self.is_head:
            return OddsHead(dict(odds), clock, self.missed, self.depth, self.reading_ms)
        return Remembering(self.name, dict(odds), self.missed, self.depth)


# One or both; handing on states takes less than an answer may lose in each pass, or more.
DRAFTING = st.lists(
    st.builds(
        Drafting,
        is_head=st.booleans(),
        token_ms=st.floats(0.0, 4.0) | st.floats(4.0, 10.0),  # as long as a pass, where the target drafts
        row_share=st.sampled_from([0.0, 0.1, 0.25]),
        begin_ms=st.sampled_from([0.0, 0.0, 1.0, 8.0]),
        depth=st.sampled_from([None, None, 1, 3]),
        missed=st.sampled_from([0, 9, 9, 300, 5000]),
        reading_ms=st.sampled_from([0.0, 0.01, 0.5]),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda drafting: drafting.is_head,
)


def hand_on(planner: Planner, drafts: Iterable[Draft]) -> None:
    """Hand on a row of each draft's request."""
    for draft in drafts:
        window = Window([3], 0, [0])
        planner.read(draft.request, window, np.zeros((1, 12), np.float32), np.zeros((1, 4), np.float32))


def cost_of(base: list[float], draft_ms: float = 0.0) -> CostModel:
    return CostModel(ROWS, tuple(base), (0.0,) * len(ROWS), {"draft_model": DraftCost(draft_ms)})


def draft_of(**options) -> Draft:
    return Draft(new_request([1, 2, 3], 99, **{"mode": "auto", "num_assistant_tokens": None, **options}), 2, 32)


def stopped() -> float:
    """A clock by which Python takes no time."""
    return 0.0


def planner_of(
    cost: CostModel | None,
    text: OddsDrafter,
    *models: OddsModel | None,
    clock: Callable[[], float] = stopped,
    acceptance: AcceptanceModel | None = None,
) -> Planner:
    """Believes what proposals say of themselves unless an acceptance model is given."""
    there = tuple(model for model in models if model is not None)
    both = ModeDrafters((text,), there)
    modes = {"off": ModeDrafters(), "suffix": ModeDrafters((text,)), "draft": ModeDrafters(models=there)}
    modes |= {"chained": both, "auto": both}
    for model in there:
        model.cost = cost
    acceptance = acceptance or Odds()
    of_models = (lambda: sum(model.clock() for model in there)) if there else clock
    drafter_set = DrafterSet(modes, acceptance, 12, of_models)
    return Planner(drafter_set, acceptance, cost, clock)


FLAT = st.floats(0.05, 10).map(lambda pass_ms: [pass_ms] * len(ROWS))  # as on an NPU
BASES = FLAT | st.lists(st.floats(0.05, 10), min_size=len(ROWS), max_size=len(ROWS)).map(
    lambda steps: [10 + sum(steps[: i + 1]) for i in range(len(steps))]
)

DEAR_FIRST = {1: 78, 2: 127, 3: 141, 4: 178, 5: 190, 6: 205, 8: 243, 12: 325, 16: 381, 32: 743}  # ms, without VNNI


def speed_of(
    fewest_rows: int,
    estimates: Callable[[Random], list[float]],
    num_answers: int,
    drafting: Drafting | None = None,
) -> float:
    """Tokens per millisecond of answers of 64, each alone, where `estimates` of what a text drafter offers at each
    place, or else a model, are right, and passes of `fewest_rows` and more take the time of `DEAR_FIRST`. Of each pass
    the tokens count that it is expected to give, which tells as much in fewer answers."""
    times = {rows: float(ms) for rows, ms in DEAR_FIRST.items() if rows >= fewest_rows}
    drafts = {} if drafting is None else {drafting.name: drafting.cost}
    cost = CostModel(tuple(times), tuple(times.values()), (0.0,) * len(times), drafts)
    text, models = OddsDrafter("suffix", {}), [] if drafting is None else [drafting.of({}, Clock())]
    planner = planner_of(cost, text, *models)
    offering = models[0] if models else text
    rng, luck, num_tokens, time_ms = Random(1), Random(2), 0.0, 0.0
    for _ in range(num_answers):
        draft, left = draft_of(), 64
        text.odds[draft.request] = []
        while left:
            draft.cut(0)
            draft.limit = min(32, left - 1)
            offering.odds[draft.request] = offered = estimates(rng)
            planner.draft([draft])
            num_kept = sum(1 for _ in takewhile(lambda odds: luck.random() < odds, offered[: len(draft.proposals)]))
            kept = [*draft.tokens[:num_kept], 3]
            planner.observe([draft], [kept], None)
            for model in models:
                model.passed(draft.request, kept)
            num_tokens += 1 + sum(draft.probabilities)
            time_ms += cost.pass_ms([(draft.rows, 0)])
            left -= len(kept)
        planner.release(draft.request)
    return num_tokens / (time_ms + 1e3 * sum(model.clock_s for model in models))


def answer(planner, draft) -> None:
    """One pass of an answer that goes as the drafts foresaw."""
    draft.cut(0)
    draft.draft_ms = 0.0
    planner.draft([draft])
    planner.observe([draft], [[*draft.tokens, 3]], None)


class Losses:
    """What answers have lost to drafting, each of which may lose `allowed_ms` and TOLERANCE of its plain passes, of
    `plain_ms` each, `num_before` of which it has had."""

    def __init__(self, num_answers: int, plain_ms: float, allowed_ms: float, num_before: int = 0) -> None:
        self.plain_ms, self.allowed_ms = plain_ms, allowed_ms
        self.lost, self.plain = [0.0] * num_answers, [num_before * plain_ms] * num_answers

    def passed(self, waits_ms: float, kept: list[list[int]]) -> None:
        """A pass that took so much longer than a plain one, and gave the answers these tokens."""
        for i, tokens in enumerate(kept):
            self.lost[i] += waits_ms
            assert self.lost[i] <= TOLERANCE * self.plain[i] + self.allowed_ms + 1e-6
            self.lost[i] -= (len(tokens) - 1) * self.plain_ms
            self.plain[i] += len(tokens) * self.plain_ms


def kept_by(rng: Random, drafts: list[Draft], lucks: list[float]) -> list[list[int]]:
    """As many tokens of each draft as its luck has it, and another one."""
    return [
        [*draft.tokens[: sum(rng.random() < luck for _ in draft.proposals)], 3]
        for draft, luck in zip(drafts, lucks, strict=True)
    ]
