"""Drafters with known acceptance probabilities and a planner over them, for the tests of who drafts how much."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, takewhile
from random import Random

import numpy as np
from hypothesis import strategies as st

from outrider.pipelines.model.target import Window
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


class Clock:
    """Seconds that pass only where somebody says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


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


class Remembering(OddsModel):
    """One that knows what it has read, as a draft model does: of each text all but `missed` tokens at first, and then
    also the drafts that it wrote or scored. A draft for a request takes `begin_ms` more. `passed` tells what was kept.
    """

    def __init__(self, name: str, odds: dict, missed: int = 0, depth: int | None = None) -> None:
        super().__init__(name, odds)
        self.depth = depth
        self.num_unread: defaultdict = defaultdict(lambda: 1 + missed)
        self.ahead: defaultdict = defaultdict(list)  # tokens of drafts that it has read
        self.begun: set = set()

    def generate(self, wanted) -> list[Proposal | None]:
        has_room = [self.depth is None or len(ahead) < self.depth for _, ahead in wanted]
        proposals = iter(super().generate(list(compress(wanted, has_room))) if any(has_room) else ())
        return [next(proposals) if each else None for each in has_room]

    def num_behind(self, request, ahead=()) -> int:
        known = [] if self.num_unread[request] else self.ahead[request]
        return max(1, self.num_unread[request] + len(ahead) - num_same(known, ahead))

    def passed(self, request, kept: list[int]) -> None:
        """End a pass of the target."""
        if not self.num_unread[request]:
            self.num_unread[request] -= self._num_read_of(request, kept)
        self.num_unread[request] += len(kept)
        self.ahead[request] = []
        self.begun.discard(request)

    def _num_read_of(self, request, kept: list[int]) -> int:
        """How many of these tokens need not be read any more."""
        return num_same(self.ahead[request], kept)

    def _run(self, wanted) -> None:
        self.num_passes += 1
        assert self.cost is not None
        known = replace(self.cost).of_draft(self.name)  # which has learnt nothing
        begin_ms = known.begin_ms * sum(request not in self.begun for request, _ in wanted)
        self.clock_s += (begin_ms + self._took_ms(known, wanted)) / 1e3
        for request, ahead in wanted:
            self.num_unread[request], self.ahead[request] = 0, list(ahead)
            self.begun.add(request)

    def _took_ms(self, known: DraftCost, wanted) -> float:
        """In one pass."""
        return known.pass_ms(len(wanted)) + sum(known.feeding_ms(self.num_behind(*each) - 1) for each in wanted)


class OddsHead(Remembering):
    """The same as a head: each token of a draft takes it a pass, and it reads what was accepted again, with the
    target's states. Being handed those takes `reading_ms` of Python's time."""

    reads_ahead = False

    def __init__(
        self, odds: dict, clock: Clock, missed: int = 0, depth: int | None = None, reading_ms: float = 0.0
    ) -> None:
        super().__init__("head", odds, missed, depth)
        self.python, self.reading_ms = clock, reading_ms

    def read(self, request, start, states) -> None:
        self.python.now += self.reading_ms / 1e3

    def _num_read_of(self, request, kept) -> int:
        return 0

    def _took_ms(self, known, wanted) -> float:
        """In as many passes as the longest takes; the texts are read in the first."""
        of_texts = [max(0, self.num_unread[request] - 1) for request, _ in wanted]
        nums_passes = [self.num_behind(*each) - number for each, number in zip(wanted, of_texts, strict=True)]
        nums_sharing = [sum(number > i for number in nums_passes) for i in range(max(nums_passes))]
        return sum(map(known.feeding_ms, of_texts)) + sum(map(known.pass_ms, nums_sharing))


def num_same(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first tokens are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


class Known(DraftCost):
    """That of a model which takes just that, so that there is nothing to learn."""

    def observe(self, expected_ms: float, measured_ms: float, beginning_ms: float = 0.0) -> None:
        pass


@dataclass(frozen=True)
class Drafting:
    """A model that drafts, a head or a draft model: what it takes, how deep it can draft, how much it has missed, and
    how long Python takes to hand it the target's states."""

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
        token_ms=st.floats(0.0, 4.0),
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
    drafter_set = DrafterSet(modes, acceptance, 12, lambda: sum(model.clock() for model in there))
    return Planner(drafter_set, acceptance, cost, clock)


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
