"""The planner alone, on proposals whose odds are known: as many tokens as pay, and never much time lost."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines import planner as planner_module
from outrider.pipelines.calibration import Evidence
from outrider.pipelines.drafters.base import Chain, Proposal
from outrider.pipelines.drafting import Drafting
from outrider.pipelines.planner import ALLOWANCE, STAKE, TOLERANCE, Planner
from outrider.pipelines.turn import Pass, Turn

from .fakes import request
from .planning import BASES, Behind, Odds, Offering, Writing, cost_of, planner_of, turn_of


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
        proposal = Proposal(7, "suffix", Evidence("suffix"))
        coming.take(turn, proposal, turn.survival * estimate, coming.row_ms(turn))
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


@given(BASES, st.floats(0.5, 0.999), st.floats(0.0, 4.0), st.integers(2, 200), st.integers(0, 5000))
def test_drafts_that_always_fail_lose_no_more_than_the_ledger_allows(base, claimed, draft_ms, num_passes, missed):
    """However sure the drafters are of themselves, and however much the draft model has to catch up with."""
    cost, turn = cost_of(base, draft_ms), turn_of()
    cost.draft_row_ms = draft_ms / 10
    text = Offering("suffix", {turn.sequence: [claimed] * 4})
    model = Behind("draft_model", {turn.sequence: [claimed] * 32}, missed)
    planner = planner_of(cost, text, model)
    lost = plain = 0.0
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
    lost, plain = [0.0] * len(turns), [0.0] * len(turns)
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


@given(BASES, st.floats(0.9, 0.999), st.integers(1, 9), st.sampled_from([3, 4000]))
def test_a_text_stakes_only_a_share_of_what_may_still_be_lost_until_its_drafts_have_stood(
    base, claimed, num_passes, prompt_length
):
    """However long the prompt took."""
    sequence = request([1] * prompt_length, 99, mode="auto", num_assistant_tokens=None)
    cost, turn = cost_of(base), Turn(sequence, 0, 32)
    pass_ms = cost.pass_ms([(1, 0)])
    planner = planner_of(cost, Offering("suffix", {sequence: [claimed] * 32}))
    left = ALLOWANCE * pass_ms
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


@given(BASES, st.lists(st.floats(0.5, 0.99), min_size=1, max_size=9), st.integers(1, 40))
def test_plain_answers_in_between_do_not_change_what_is_drafted(base, odds, num_plain):
    """Their rate is lower, so that more would seem to pay."""
    lengths = []
    for plain_between in (0, num_plain):
        cost, turn, plain = cost_of(base), turn_of(), turn_of(mode="off")
        planner = planner_of(cost, Offering("suffix", {turn.sequence: odds}))
        for _ in range(5):
            planner.draft([turn])
            planner.observe([turn], [[*turn.tokens, 3]], None)
            turn.cut(0)
        for _ in range(plain_between):
            planner.draft([plain])
            planner.observe([plain], [[3]], None)
        planner.draft([turn])
        lengths.append(len(turn.draft))
    assert lengths[0] == lengths[1]


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
