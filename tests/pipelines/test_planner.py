"""The planner alone, on proposals whose odds are known: as many tokens as pay, and never much time lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines import planner as planner_module
from outrider.pipelines.calibration import Calibration, Evidence
from outrider.pipelines.cost import CostModel
from outrider.pipelines.drafters.base import Chain, Opinion, Proposal
from outrider.pipelines.drafting import Drafting
from outrider.pipelines.planner import ALLOWANCE, STAKE, TOLERANCE, Planner
from outrider.pipelines.turn import Pass, Turn

from .fakes import request

ROWS = (2, 3, 4, 6, 9, 33)


@pytest.fixture(autouse=True)
def keep_draft_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafters here take no time, which the cost model would learn."""
    monkeypatch.setattr(CostModel, "observe_draft", lambda *times: None)


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
    """The same, as a model does: one token for each of several sequences a pass."""

    num_passes = 0

    def write(self, wanted) -> list[Proposal | None]:
        self.num_passes += 1
        left = [self.odds[sequence][len(ahead) :] for sequence, ahead in wanted]
        return [self._proposal(estimates[0]) if estimates else None for estimates in left]

    def read(self, wanted) -> list[list[Opinion] | None]:
        self.num_passes += 1
        return [self._opinions(self.odds[sequence][: len(ahead) + 1]) for sequence, ahead in wanted]

    def _opinions(self, estimates) -> list[Opinion]:
        """Below even odds it would write another token."""
        made = [replace(self._proposal(e), token=7 if e > 0.5 else 5) for e in estimates]
        return [Opinion(proposal, 4 * e - 2) for proposal, e in zip(made, estimates, strict=True)]

    def num_behind(self, sequence) -> int:
        return 1


def cost_of(base: list[float], draft_ms: float = 0.0) -> CostModel:
    return CostModel(ROWS, tuple(base), (0.0,) * len(ROWS), draft_ms=draft_ms)


def turn_of(**options) -> Turn:
    return Turn(request([1, 2, 3], 99, **{"mode": "auto", "num_assistant_tokens": None, **options}), 2, 32)


def planner_of(cost: CostModel | None, text: Offering, model: Writing | None = None) -> Planner:
    both = Chain((text,), model)
    modes = {"off": Chain(), "suffix": Chain((text,)), "chained": both, "auto": both}
    return Planner(Drafting(modes, Odds(), 12), Odds(), cost)


BASES = st.lists(st.floats(0.05, 10), min_size=len(ROWS), max_size=len(ROWS)).map(
    lambda steps: [10 + sum(steps[: i + 1]) for i in range(len(steps))]
)


@given(BASES, st.lists(st.lists(st.floats(0.01, 0.99), max_size=6), min_size=1, max_size=3), st.integers(0, 9))
def test_the_draft_is_worth_as_much_as_the_best_of_all_cuts(base, odds, other_rows):
    cost, turns = cost_of(base), [turn_of() for _ in odds]
    offering = Offering("suffix", {turn.sequence: estimates for turn, estimates in zip(turns, odds, strict=True)})
    planner = planner_of(cost, offering)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(planner_module, "ALLOWANCE", math.inf)  # so that no stake is too high
        planner.draft(turns, other_rows)

    def worth(lengths) -> float:
        total = 0.0
        for estimates, length in zip(odds, lengths, strict=True):
            survival = 1.0
            for estimate in estimates[:length]:
                survival *= estimate
                total += survival
        rows = other_rows + sum(1 + length for length in lengths)
        return total - planner.rate * cost.pass_ms([(rows, 0)])

    chosen = worth([len(turn.draft) for turn in turns])
    best = max(worth(lengths) for lengths in product(*(range(len(estimates) + 1) for estimates in odds)))
    assert chosen == pytest.approx(best, abs=1e-9)


@given(BASES, st.lists(st.floats(0.01, 1), max_size=12), st.floats(0.01, 1), st.integers(1, 9))
def test_what_is_kept_of_a_draft_is_worth_as_much_as_the_best_of_its_beginnings(base, estimates, rate, other_rows):
    coming, turn = Pass(cost_of(base), 1 + other_rows), turn_of()
    for estimate in estimates:
        coming.take(turn, Proposal(7, "suffix", Evidence("suffix")), turn.survival * estimate)
    worths = [sum(turn.survivals[:n]) - rate * sum(turn.prices_ms[:n]) for n in range(len(estimates) + 1)]
    coming.cut_to_best(turn, rate)
    assert worths[len(turn.draft)] == pytest.approx(max(worths), abs=1e-9)
    assert coming.rows == other_rows + turn.rows


def test_a_number_of_tokens_that_is_asked_for_is_drafted_whatever_it_costs():
    turn = turn_of(num_assistant_tokens=4)
    planner = planner_of(cost_of([10, 90, 190, 290, 390, 990]), Offering("suffix", {turn.sequence: [0.01] * 9}))
    planner.draft([turn])
    assert turn.tokens == [7] * 4
    assert turn.survival == pytest.approx(0.01**4)


def test_without_a_cost_model_nothing_is_planned():
    turn, model = turn_of(), Writing("draft_model", {})
    planner_of(None, Offering("suffix", {turn.sequence: [0.99] * 9}), model).draft([turn])
    assert turn.tokens == []


@pytest.mark.parametrize(
    ("mode", "text", "model", "expected"),
    [
        ("auto", [0.95, 0.9], [0.05] * 9, ["suffix", "suffix"]),
        ("auto", [0.99, 0.99], [0.99] * 9, ["suffix", "suffix", *["draft_model"] * 7]),
        ("auto", [0.02], [0.99] * 9, ["draft_model"] * 9),
        ("chained", [0.02], [0.99] * 9, ["suffix"]),
        ("auto", [], [0.99] * 9, ["draft_model"] * 9),
        ("suffix", [0.9, 0.9], [0.99] * 9, ["suffix", "suffix"]),
        ("off", [0.9], [0.9], []),
    ],
)
def test_who_drafts_is_who_is_worth_most(mode, text, model, expected):
    turn = turn_of(mode=mode)
    drafters = Offering("suffix", {turn.sequence: text}), Writing("draft_model", {turn.sequence: model})
    planner = planner_of(cost_of([10, 10.5, 11, 11.5, 12, 20], draft_ms=0.8), *drafters)
    planner._consultant.expected = 0.8 if model[0] > 0.9 else 0.05
    planner.draft([turn])
    assert turn.sources == expected


@pytest.mark.parametrize("most", [60, 24.5])
def test_the_draft_model_stops_when_its_own_odds_fall(most):
    """And the last token is left out, though elsewhere rows may be so cheap that it would pay."""
    turn = turn_of()
    model = Writing("draft_model", {turn.sequence: [0.9, 0.9, 0.1, 0.9]})
    none = Offering("suffix", {turn.sequence: []})
    planner_of(cost_of([10, 12, 14, 18, 24, most], draft_ms=1.0), none, model).draft([turn])
    assert turn.tokens == [7, 7]
    assert model.num_taken == 3, "it wrote on after a token that was not worth its row"


def test_a_draft_model_that_never_pays_is_hardly_ever_asked():
    turn = turn_of()
    model = Writing("draft_model", {turn.sequence: [0.01] * 32})
    none = Offering("suffix", {turn.sequence: []})
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], draft_ms=2.0), none, model)
    for _ in range(1000):
        turn.cut(0)
        turn.draft_ms = 0.0
        planner.draft([turn])
        planner.observe([turn], [[3]], None)
    assert 0 < model.num_taken < 50


class Behind(Writing):
    """One that has so many tokens to be fed before its first proposal."""

    def __init__(self, name: str, odds: dict, missed: int) -> None:
        super().__init__(name, odds)
        self.missed = missed

    def read(self, wanted):
        self.missed = 0
        return super().read(wanted)

    def write(self, wanted):
        self.missed = 0
        return super().write(wanted)

    def num_behind(self, sequence) -> int:
        return 1 + self.missed


@given(BASES, st.floats(0.5, 0.999), st.floats(0.0, 4.0), st.integers(2, 200), st.integers(0, 5000))
def test_drafts_that_always_fail_lose_no_more_than_the_ledger_allows(base, claimed, draft_ms, num_passes, missed):
    """However sure the drafters are of themselves, and however much the draft model has to catch up with."""
    cost, turn = cost_of(base, draft_ms), turn_of()
    cost.draft_row_ms = draft_ms / 10
    text = Offering("suffix", {turn.sequence: [claimed] * 4})
    model = Behind("draft_model", {turn.sequence: [claimed] * 32}, missed)
    planner = planner_of(cost, text, model)
    lost, plain = 0.0, cost.pass_ms([(3, 0)])  # of the prompt
    for _ in range(num_passes):
        turn.cut(0)
        turn.draft_ms = 0.0
        caught_up_ms = cost.draft_row_ms * model.missed
        planner.draft([turn])
        caught_up_ms -= cost.draft_row_ms * model.missed
        assert turn.draft_ms >= caught_up_ms
        lost += cost.pass_ms([(turn.rows, 0)]) + turn.draft_ms - cost.pass_ms([(1, 0)])
        assert lost <= TOLERANCE * plain + ALLOWANCE * cost.pass_ms([(1, 0)]) + 1e-6
        plain += cost.pass_ms([(1, 0)])
        planner.observe([turn], [[3]], None)


CLAIMS = st.lists(st.tuples(st.sampled_from([0.01, 0.5, 0.99]), st.sampled_from([0.01, 0.99])), min_size=2, max_size=4)


@given(BASES, CLAIMS, st.floats(0.1, 4.0), st.integers(2, 120), st.randoms(use_true_random=False))
def test_each_of_several_answers_bears_the_loss_of_its_own_drafts(base, claims, draft_ms, num_passes, rng):
    """Also one whose draft model works for nothing, beside others that keep its hopes up. What stands is a gain."""
    cost, turns = cost_of(base, draft_ms), [turn_of() for _ in claims]
    text = Offering("suffix", {turn.sequence: [odds] * 4 for turn, (odds, _) in zip(turns, claims, strict=True)})
    model = Writing("draft_model", {turn.sequence: [odds] * 32 for turn, (_, odds) in zip(turns, claims, strict=True)})
    planner = planner_of(cost, text, model)
    alone_ms, plain_ms = cost.pass_ms([(1, 0)]), cost.pass_ms([(1, 0)] * len(turns))
    lost = [0.0] * len(turns)
    plain = [cost.pass_ms([(3, 0)])] * len(turns)
    for _ in range(num_passes):
        for turn in turns:
            turn.cut(0)
            turn.draft_ms = 0.0
        planner.draft(turns)
        kept = [[*turn.tokens[: rng.choice([0, 0, 0, 1, 2])], 3] for turn in turns]
        for i, turn in enumerate(turns):
            lost[i] += turn.spent_ms
            assert lost[i] <= TOLERANCE * plain[i] + ALLOWANCE * alone_ms + 1e-6
            lost[i] -= (len(kept[i]) - 1) * plain_ms / len(turns)
            plain[i] += len(kept[i]) * plain_ms / len(turns)
        rows = sum(turn.rows for turn in turns)
        assert sum(sum(turn.prices_ms) for turn in turns) >= cost.pass_ms([(rows, 0)]) - plain_ms - 1e-6
        planner.observe(turns, kept, None)


@given(BASES, st.floats(0.9, 0.999), st.integers(1, 9))
def test_a_text_stakes_only_a_share_of_what_may_still_be_lost_until_its_drafts_have_stood(base, claimed, num_passes):
    cost, turn = cost_of(base), turn_of()
    pass_ms = cost.pass_ms([(1, 0)])
    planner = planner_of(cost, Offering("suffix", {turn.sequence: [claimed] * 32}))
    left = TOLERANCE * cost.pass_ms([(3, 0)]) + ALLOWANCE * pass_ms
    for _ in range(num_passes):
        turn.cut(0)
        planner.draft([turn])
        staked = cost.pass_ms([(turn.rows, 0)]) - pass_ms
        assert staked <= STAKE * left + 1e-6
        planner.observe([turn], [[3]], None)
        left += TOLERANCE * pass_ms - staked
    turn.cut(0)
    before = len(turn.draft)
    planner.observe([turn], [[7] * 99], None)
    planner.draft([turn])
    assert len(turn.draft) > before


@pytest.mark.parametrize(("prompt_length", "reads"), [(3, False), (4000, True)])
def test_the_draft_model_catches_up_only_where_that_is_little_beside_the_answers_own_time(prompt_length, reads):
    turn = Turn(request([1] * prompt_length, 99, mode="auto", num_assistant_tokens=None), prompt_length - 1, 32)
    cost = cost_of([10, 12, 14, 18, 24, 60], draft_ms=0.1)
    cost.draft_row_ms = 0.05
    model = Behind("draft_model", {turn.sequence: [0.99] * 32}, 1000)
    planner = planner_of(cost, Offering("suffix", {turn.sequence: []}), model)
    planner._consultant.expected = 0.99
    planner.draft([turn])
    assert (model.num_passes > 0) == reads


@pytest.mark.parametrize(("estimate", "text", "first"), [(0.9, 0, range(1, 8)), (0.05, 0, ()), (0.9, 1, ())])
def test_a_draft_model_is_fed_once_it_would_have_brought_as_much_as_that_takes(estimate, text, first):
    """Not at once, as the answer may end; and not at all where it would have brought nothing, or texts offer more."""
    turn = turn_of(mode="chained")
    cost = cost_of([10, 12, 14, 18, 24, 60], draft_ms=1.0)
    cost.draft_row_ms = 0.1
    model = Behind("draft_model", {turn.sequence: [estimate] * 32}, 250)
    planner = planner_of(cost, Offering("suffix", {turn.sequence: [0.9] * text}), model)
    planner._consultant.expected = estimate
    asked = []
    for n in range(20):
        turn.cut(0)
        turn.draft_ms = 0.0
        planner.draft([turn])
        if model.num_passes:
            asked.append(n)
            break
        planner.observe([turn], [[3]], None)
    assert len(asked) == bool(first)
    assert set(asked) <= set(first)


def test_what_failed_and_what_stood_is_told_to_the_calibration_up_to_the_first_rejection():
    seen = []

    class Noting(Odds):
        def observe(self, evidence, kept):
            seen.append((evidence.features[0], kept))

    turn = turn_of(num_assistant_tokens=4)
    offering = Offering("suffix", {turn.sequence: [0.1, 0.2, 0.3, 0.4]})
    planner = Planner(Drafting({"auto": Chain((offering,))}, Odds(), 12), Noting(), None)
    planner.draft([turn])
    planner.observe([turn], [[7, 7, 5]], None)
    assert seen == [(0.1, True), (0.2, True), (0.3, False)]
    planner.release(turn.sequence)
    assert offering.odds == {}


def test_several_sequences_share_the_passes_of_the_draft_model():
    turns = [turn_of() for _ in range(4)]
    model = Writing("draft_model", {turn.sequence: [0.9] * (i + 1) for i, turn in enumerate(turns)})
    text = Offering("suffix", {turn.sequence: [] for turn in turns})
    planner_of(cost_of([10, 10.5, 11, 11.5, 12, 20], draft_ms=1.0), text, model).draft(turns)
    assert [len(turn.draft) for turn in turns] == [1, 2, 3, 4]
    assert model.num_passes <= 5
    assert len({round(turn.draft_ms, 9) for turn in turns}) > 1


def test_a_full_pass_leaves_no_room_for_doubtful_drafts():
    """The more sequences share a pass, the fewer tokens are drafted for each."""
    lengths = []
    for num_sequences in (1, 4, 16):
        turns = [turn_of() for _ in range(num_sequences)]
        offering = Offering("suffix", {turn.sequence: [0.7] * 9 for turn in turns})
        planner = planner_of(cost_of([10, 10.5, 11, 12, 16, 90]), offering)
        for _ in range(60):
            for turn in turns:
                turn.cut(0)
            planner.draft(turns)
            planner.observe(turns, [[7] * (1 + len(turn.draft) // 2) for turn in turns], None)
        lengths.append(sum(len(turn.draft) for turn in turns) / num_sequences)
    assert lengths[0] > lengths[1] > lengths[2]


def test_a_doubtful_copy_is_read_by_the_draft_model_and_mended_where_it_breaks():
    turn = turn_of()
    text = Offering("suffix", {turn.sequence: [0.8] * 8})
    model = Writing("draft_model", {turn.sequence: [0.9, 0.9, 0.1, 0.9, 0.9]})
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], draft_ms=0.5), text, model)
    planner.draft([turn])
    assert turn.tokens[:3] == [7, 7, 5], "the third token is not the draft model's"
    assert turn.sources[:3] == ["suffix", "suffix", "draft_model"]
    assert turn.survivals[:3] == pytest.approx([0.97, 0.97**2, 0.97**2 * 0.8])
    assert turn.draft_ms >= 0.5


def test_a_copy_that_was_read_is_kept_as_far_as_its_rows_pay():
    turn = turn_of()
    text = Offering("suffix", {turn.sequence: [0.8] * 8})
    model = Writing("draft_model", {turn.sequence: [0.9] * 9})
    planner_of(cost_of([10, 12, 14, 18, 42, 42.3], draft_ms=0.1), text, model).draft([turn])
    assert turn.draft_ms > 0
    assert turn.sources == ["suffix"] * 5, "a row of the sixth and the next two takes nearly as long as a pass"


@pytest.mark.parametrize(
    ("mode", "sure", "draft_ms"), [("chained", 0.8, 0.5), ("auto", 0.999, 0.5), ("auto", 0.8, 50.0)]
)
def test_a_copy_is_not_read_where_nobody_asked_or_it_would_not_pay(mode, sure, draft_ms):
    turn = turn_of(mode=mode)
    text = Offering("suffix", {turn.sequence: [sure] * 3})
    model = Writing("draft_model", {turn.sequence: [0.9, 0.1]})
    planner = planner_of(cost_of([10, 10.2, 10.4, 11, 12, 20], draft_ms=draft_ms), text, model)
    planner._consultant.expected = 0.1
    planner.draft([turn])
    assert turn.tokens == [7] * 3
    assert set(turn.sources) == {"suffix"}


def test_a_draft_model_that_is_full_leaves_the_copy_as_it_was_and_is_left_alone():
    turn = turn_of()

    class Full(Writing):
        def read(self, wanted):
            self.num_passes += 1
            return [None] * len(wanted)

        def write(self, wanted):
            self.num_passes += 1
            return [None] * len(wanted)

    model = Full("draft_model", {turn.sequence: []})
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], 0.5), Offering("suffix", {turn.sequence: [0.8] * 8}), model)
    for _ in range(300):
        turn.cut(0)
        turn.draft_ms = 0.0
        planner.draft([turn])
        assert turn.tokens
        assert set(turn.sources) == {"suffix"}
    assert model.num_passes == 1
    planner.release(turn.sequence)
    assert planner._consultant._without_room == set()
