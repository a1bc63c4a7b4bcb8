"""Drafters with known acceptance probabilities and a planner over them, for the tests of who drafts how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from outrider.pipelines.speculation.acceptance import GREEDY, AcceptanceModel, Conditions, Features
from outrider.pipelines.speculation.budgets import TOLERANCE
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import Draft
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.drafter_set import DrafterSet
from outrider.pipelines.speculation.drafters.base import ModeDrafters, Proposal, Score
from outrider.pipelines.speculation.planner import Planner

from ..fakes import new_request

ROWS = (2, 3, 4, 6, 9, 33)


class Odds(AcceptanceModel):
    """Believes what a proposal says of itself, and learns nothing."""

    def probability(self, features: Features, conditions: Conditions = GREEDY) -> float:
        if features.kind in ("agreed", "doubted", "mended"):
            return {"agreed": 0.97, "doubted": 0.2, "mended": 0.8}[features.kind]
        return features.values[0]

    def observe(self, features: Features, accepted: bool, conditions: Conditions = GREEDY) -> None:
        pass


class OddsDrafter:
    """Proposes tokens with given acceptance probabilities to each request."""

    def __init__(self, name: str, odds: dict) -> None:
        self.name = name
        self.odds = odds
        self.num_taken = 0

    def propose(self, request, ahead=()) -> Iterator[Proposal]:
        for estimate in self.odds[request][len(ahead) :]:
            yield self._proposal(estimate)

    def release(self, request) -> None:
        self.odds.pop(request, None)

    def _proposal(self, estimate: float) -> Proposal:
        self.num_taken += 1
        return Proposal(7, self.name, Features(self.name, (estimate,)))


class OddsModel(OddsDrafter):
    """The same as a draft model: one token per pass for each of several requests.

    A pass takes `slowness` times what `cost` was told that it takes, by the `clock` of the model itself.
    """

    reads_ahead = True
    depth: int | None = None
    num_passes = 0
    clock_s = 0.0
    slowness = 1.0
    cost: CostModel | None = None

    def clock(self) -> float:
        return self.clock_s

    def generate(self, wanted) -> list[Proposal | None]:
        self._run(wanted)
        left = [self.odds[request][len(ahead) :] for request, ahead in wanted]
        return [self._proposal(estimates[0]) if estimates else None for estimates in left]

    def score(self, wanted) -> list[list[Score] | None]:
        self._run(wanted)
        return [self._scores(self.odds[request][: len(ahead) + 1]) for request, ahead in wanted]

    def _scores(self, estimates) -> list[Score]:
        """Below even odds it would write another token."""
        made = [self._proposal(e)._replace(token=7 if e > 0.5 else 5) for e in estimates]
        return [Score(proposal, 4 * e - 2) for proposal, e in zip(made, estimates, strict=True)]

    def num_behind(self, request, ahead=()) -> int:
        return 1

    def _run(self, wanted) -> None:
        self.num_passes += 1
        if self.cost is not None:
            quick = replace(self.cost)  # which has learnt nothing
            took_ms = quick.of_draft(self.name).pass_ms(len(wanted))
            took_ms += sum(quick.of_draft(self.name).feeding_ms(self.num_behind(*each) - 1) for each in wanted)
            self.clock_s += self.slowness * took_ms / 1e3


class Behind(OddsModel):
    """One that has so many tokens to be fed before its first proposal."""

    def __init__(self, name: str, odds: dict, missed: int) -> None:
        super().__init__(name, odds)
        self.missed = missed

    def _run(self, wanted) -> None:
        super()._run(wanted)
        self.missed = 0

    def num_behind(self, request, ahead=()) -> int:
        return 1 + self.missed


def cost_of(base: list[float], draft_ms: float = 0.0) -> CostModel:
    return CostModel(ROWS, tuple(base), (0.0,) * len(ROWS), {"draft_model": DraftCost(draft_ms)})


def draft_of(**options) -> Draft:
    return Draft(new_request([1, 2, 3], 99, **{"mode": "auto", "num_assistant_tokens": None, **options}), 2, 32)


def stopped() -> float:
    """A clock by which Python takes no time."""
    return 0.0


def planner_of(
    cost: CostModel | None, text: OddsDrafter, *models: OddsModel | None, clock: Callable[[], float] = stopped
) -> Planner:
    there = tuple(model for model in models if model is not None)
    both = ModeDrafters((text,), there)
    modes = {"off": ModeDrafters(), "suffix": ModeDrafters((text,)), "draft": ModeDrafters(models=there)}
    modes |= {"chained": both, "auto": both}
    for model in there:
        model.cost = cost
    return Planner(DrafterSet(modes, Odds(), 12, lambda: sum(model.clock() for model in there)), Odds(), cost, clock)


class Clock:
    """Seconds that pass only where somebody says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(OddsDrafter):
    """Takes so long to be asked, in milliseconds, and for each token that it offers beyond the first; `num_asked` and
    `num_further` count that."""

    def __init__(self, name: str, odds: dict, clock: Clock, asking_ms: float, offering_ms: float = 0.0) -> None:
        super().__init__(name, odds)
        self.clock, self.asking_ms, self.offering_ms = clock, asking_ms, offering_ms
        self.num_asked = self.num_further = 0

    def propose(self, request, ahead=()):
        self.clock.now += self.asking_ms / 1e3
        self.num_asked += 1
        for i, proposal in enumerate(super().propose(request, ahead)):
            if i:
                self.clock.now += self.offering_ms / 1e3
                self.num_further += 1
            yield proposal


class Pondered(OddsModel):
    """Takes so long to be considered, in milliseconds, whatever comes of it; `num_considered` counts that."""

    def __init__(self, odds: dict, clock: Clock, considering_ms: float) -> None:
        super().__init__("draft_model", odds)
        self.python, self.considering_ms, self.num_considered = clock, considering_ms, 0

    def num_behind(self, request, ahead=()) -> int:
        if not ahead:
            self.python.now += self.considering_ms / 1e3
            self.num_considered += 1
        return 1


FLAT = st.floats(0.05, 10).map(lambda pass_ms: [pass_ms] * len(ROWS))  # as on an NPU
BASES = FLAT | st.lists(st.floats(0.05, 10), min_size=len(ROWS), max_size=len(ROWS)).map(
    lambda steps: [10 + sum(steps[: i + 1]) for i in range(len(steps))]
)

DEAR_FIRST = {1: 78, 2: 127, 3: 141, 4: 178, 5: 190, 6: 205, 8: 243, 12: 325, 16: 381, 32: 743}  # ms, without VNNI


def speed_of(fewest_rows: int, estimates: Callable[[Random], list[float]], num_answers: int, seed: int = 1) -> float:
    """Tokens per millisecond of answers of 64, each alone, where `estimates` of what is offered at each place are
    right, and passes of `fewest_rows` and more take the time of `DEAR_FIRST`."""
    times = {rows: float(ms) for rows, ms in DEAR_FIRST.items() if rows >= fewest_rows}
    cost = CostModel(tuple(times), tuple(times.values()), (0.0,) * len(times))
    offering, rng, time_ms = OddsDrafter("suffix", {}), Random(seed), 0.0
    planner = planner_of(cost, offering)
    for _ in range(num_answers):
        draft, left = draft_of(), 64
        while left:
            draft.cut(0)
            draft.limit = min(32, left - 1)
            offering.odds[draft.request] = offered = estimates(rng)
            planner.draft([draft])
            accepted = [rng.random() < estimate for estimate in offered[: len(draft.proposals)]]
            num_kept = [*accepted, False].index(False)
            planner.observe([draft], [[*draft.tokens[:num_kept], 3]], None)
            time_ms += cost.pass_ms([(draft.rows, 0)])
            left -= num_kept + 1
        planner.release(draft.request)
    return 64 * num_answers / time_ms


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
