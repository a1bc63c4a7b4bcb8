"""The planner alone, on proposals whose odds are known: as many tokens as pay, and never much time lost."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.speculation import account
from outrider.pipelines.speculation.account import ALLOWANCE, TOLERANCE
from outrider.pipelines.speculation.calibration import Evidence
from outrider.pipelines.speculation.drafters.base import Chain, Proposal
from outrider.pipelines.speculation.drafting import Drafting
from outrider.pipelines.speculation.planner import STAKE, Planner
from outrider.pipelines.speculation.turn import Pass, Turn

from ..fakes import new_request
from .planning import BASES, DEAR_FIRST, Behind, Odds, Offering, Writing, cost_of, planner_of, speed_of, turn_of


@given(BASES, st.lists(st.lists(st.floats(0.01, 0.99), max_size=6), min_size=1, max_size=3), st.integers(0, 9))
def test_the_draft_is_worth_as_much_as_the_best_of_all_cuts(base, odds, other_rows):
    cost, turns = cost_of(base), [turn_of() for _ in odds]
    offering = Offering("suffix", {turn.request: estimates for turn, estimates in zip(turns, odds, strict=True)})
    planner = planner_of(cost, offering)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(account, "ALLOWANCE", math.inf)  # so that no stake is too high
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
    planner = planner_of(cost_of([10, 90, 190, 290, 390, 990]), Offering("suffix", {turn.request: [0.01] * 9}))
    planner.draft([turn])
    assert turn.tokens == [7] * 4
    assert turn.survival == pytest.approx(0.01**4)


def test_without_a_cost_model_nothing_is_planned():
    turn, model = turn_of(), Writing("draft_model", {})
    planner_of(None, Offering("suffix", {turn.request: [0.99] * 9}), model).draft([turn])
    assert turn.tokens == []


@given(BASES, st.floats(0.5, 0.999), st.floats(0.0, 4.0), st.integers(2, 200), st.integers(0, 5000))
def test_drafts_that_always_fail_lose_no_more_than_the_ledger_allows(base, claimed, draft_ms, num_passes, missed):
    """However sure the drafters are of themselves, and however much the draft model has to catch up with."""
    cost, turn = cost_of(base, draft_ms), turn_of()
    cost.draft_row_ms = draft_ms / 10
    text = Offering("suffix", {turn.request: [claimed] * 4})
    model = Behind("draft_model", {turn.request: [claimed] * 32}, missed)
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
        assert lost <= TOLERANCE * plain + ALLOWANCE * cost.pass_ms([(2, 0)]) + 1e-6
        plain += cost.pass_ms([(1, 0)])
        planner.observe([turn], [[3]], None)


CLAIMS = st.lists(
    st.tuples(
        st.sampled_from(["auto", "auto", "suffix", "off"]),
        st.sampled_from([None, None, None, 3]),
        st.sampled_from([0.01, 0.5, 0.99]),
        st.sampled_from([0.01, 0.99]),
        st.sampled_from([0.0, 0.0, 0.6, 1.0]),
    ),
    min_size=2,
    max_size=17,
)


@given(BASES, CLAIMS, st.floats(0.1, 4.0), st.integers(2, 80), st.randoms(use_true_random=False))
def test_no_answer_of_a_batch_is_delayed_beyond_the_bound(base, claims, draft_ms, num_passes, rng):
    """By all drafts of its passes, its own and those of others, whoever claims what of them and however many stand;
    also one that drafts nothing. Rows of fixed lengths are no drafts of anybody here."""
    cost = cost_of(base, draft_ms)
    cost.draft_row_ms = draft_ms / 4
    turns = [turn_of(mode=mode, num_assistant_tokens=length) for mode, length, *_ in claims]
    sure = {turn.request: [odds] * 8 for turn, (_, _, odds, _, _) in zip(turns, claims, strict=True)}
    text = Offering("suffix", sure)
    written = {turn.request: [odds] * 32 for turn, (*_, odds, _) in zip(turns, claims, strict=True)}
    model = Behind("draft_model", written, 9)
    planner = planner_of(cost, text, model)
    plain_ms = cost.pass_ms([(1, 0)] * len(turns))
    allowed_ms = ALLOWANCE * cost.pass_ms([(1 + len(turns), 0)])
    delay, plain = [0.0] * len(turns), [0.0] * len(turns)
    for _ in range(num_passes):
        for turn in turns:
            turn.cut(0)
            turn.draft_ms = 0.0
        planner.draft(turns)
        planned = [turn.request.config.num_assistant_tokens is None for turn in turns]
        rows = sum(turn.rows for turn in turns)
        bare = sum(1 if is_planned else turn.rows for turn, is_planned in zip(turns, planned, strict=True))
        waits = cost.pass_ms([(rows, 0)]) - cost.pass_ms([(bare, 0)]) + sum(turn.draft_ms for turn in turns)
        kept = []
        for i, (turn, (*_, luck)) in enumerate(zip(turns, claims, strict=True)):
            kept.append([*turn.tokens[: sum(rng.random() < luck for _ in turn.draft)], 3])
            if planned[i]:
                delay[i] += waits
                assert delay[i] <= TOLERANCE * plain[i] + allowed_ms + 1e-6
                delay[i] -= (len(kept[i]) - 1) * plain_ms
                plain[i] += len(kept[i]) * plain_ms
        planner.observe(turns, kept, None)


def test_a_draft_that_is_dropped_gives_back_only_what_the_last_rows_of_the_pass_take():
    """Where its own first row was dear, that price falls on the row of another now."""
    cost, turns = cost_of([10, 12, 12.05, 12.1, 12.15, 12.5], draft_ms=1.5), [turn_of(), turn_of()]
    text = Offering("suffix", {turns[0].request: [0.6] * 8, turns[1].request: [0.5]})
    model = Writing("draft_model", {turns[0].request: [0.99] * 32, turns[1].request: []})
    planner = planner_of(cost, text, model)
    planner._consultant.expected = 0.99
    for turn in turns:
        account = planner._account(cost, turn, turns, 10.0)
        account.lost_ms += account.spare_ms - 2.5
    planner.draft(turns)
    rows, draft_ms = sum(turn.rows for turn in turns), sum(turn.draft_ms for turn in turns)
    assert rows > len(turns)
    assert cost.pass_ms([(rows, 0)]) - 10 + draft_ms <= 2.5 + 1e-9


def test_an_answer_beside_many_failing_drafters_loses_as_little_as_one_alone():
    """And so does one that comes when the others have drafted for long."""
    cost = cost_of([10, 11, 12, 14, 17, 40], draft_ms=2.0)
    drafters, off = [turn_of() for _ in range(16)], turn_of(mode="off")
    text = Offering("suffix", {turn.request: [0.9] * 8 for turn in drafters})
    planner = planner_of(cost, text)
    for beside in ([], [off]):
        turns, delay = [*drafters, *beside], 0.0
        plain_ms = cost.pass_ms([(len(turns), 0)])
        for _ in range(200):
            for turn in turns:
                turn.cut(0)
            planner.draft(turns)
            delay += cost.pass_ms([(sum(turn.rows for turn in turns), 0)]) - plain_ms
            planner.observe(turns, [[3]] * len(turns), None)
        assert delay <= TOLERANCE * 200 * plain_ms + ALLOWANCE * cost.pass_ms([(1 + len(turns), 0)])
        for turn in drafters:  # they write on, and all of it stands
            for _ in range(20):
                planner.observe([turn], [[7] * 30], None)


@given(BASES, st.floats(0.9, 0.999), st.integers(1, 9), st.sampled_from([3, 4000]))
def test_a_text_stakes_only_a_share_of_what_may_still_be_lost_until_its_drafts_have_stood(
    base, claimed, num_passes, prompt_length
):
    """However long the prompt took."""
    request = new_request([1] * prompt_length, 99, mode="auto", num_assistant_tokens=None)
    cost, turn = cost_of(base), Turn(request, 0, 32)
    pass_ms = cost.pass_ms([(1, 0)])
    planner = planner_of(cost, Offering("suffix", {request: [claimed] * 32}))
    left = ALLOWANCE * cost.pass_ms([(2, 0)])
    for _ in range(num_passes):
        turn.cut(0)
        planner.draft([turn])
        staked = cost.pass_ms([(turn.rows, 0)]) - pass_ms
        assert staked <= STAKE * left + 1e-6 or all(
            sum(turn.survivals[:n]) < planner.rate * sum(turn.prices_ms[:n])
            for n in range(1, turn.rows)
            if sum(turn.prices_ms[:n]) <= STAKE * left
        )
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
        planner = planner_of(cost, Offering("suffix", {turn.request: odds}))
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
    offering = Offering("suffix", {turn.request: [0.1, 0.2, 0.3, 0.4]})
    planner = Planner(Drafting({"auto": Chain((offering,))}, Odds(), 12), Noting(), None)
    planner.draft([turn])
    planner.observe([turn], [[7, 7, 5]], None)
    assert seen == [(0.1, True), (0.2, True), (0.3, False)]
    planner.release(turn.request)
    assert offering.odds == {}


def test_a_full_pass_leaves_no_room_for_doubtful_drafts():
    """The more requests share a pass, the fewer tokens are drafted for each."""
    lengths = []
    for num_requests in (1, 4, 16):
        turns = [turn_of() for _ in range(num_requests)]
        offering = Offering("suffix", {turn.request: [0.7] * 9 for turn in turns})
        planner = planner_of(cost_of([10, 10.5, 11, 12, 16, 90]), offering)
        for _ in range(60):
            for turn in turns:
                turn.cut(0)
            planner.draft(turns)
            planner.observe(turns, [[7] * (1 + (1 + len(turn.draft)) // 2) for turn in turns], None)
        lengths.append(sum(len(turn.draft) for turn in turns) / num_requests)
    assert lengths[0] > lengths[1] > lengths[2]


SURE_OR_NOT = {f"{odds}": lambda rng, odds=odds: [odds] * 32 for odds in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)}
TEXTS = {
    **SURE_OR_NOT,
    "chat": lambda rng: [0.6] * 4 if rng.random() < 0.3 else [],
    "edit": lambda rng: [0.95] * 16 if rng.random() < 0.8 else [0.4] * 4,
}


@pytest.mark.parametrize("text", TEXTS)
def test_cheap_single_rows_make_no_text_slower(text):
    """Though the first row of a draft is dear then, and only the next ones are cheap: drafts are judged as wholes."""
    single, double = (speed_of(fewest_rows, TEXTS[text], 160) for fewest_rows in (1, 2))
    assert single >= 0.98 * double
    assert single >= 0.98 / DEAR_FIRST[1]


@given(
    BASES,
    st.lists(st.tuples(st.sampled_from([None, 1, 5, 32]), st.booleans(), st.integers(0, 32)), min_size=1, max_size=9),
    st.integers(0, 40),
    st.integers(0, 60),
)
def test_a_pass_has_no_more_rows_than_it_may(base, requests, other_rows, spare_rows):
    """Whoever drafts, and however much; no answer loses the row of its last token."""
    turns = []
    for length, _, limit in requests:
        turn = turn_of(num_assistant_tokens=length)
        turn.limit = limit
        turns.append(turn)
    offers = {turn.request: [0.8] * (9 if offers else 0) for turn, (_, offers, _) in zip(turns, requests, strict=True)}
    model = Writing("draft_model", {turn.request: [0.9] * 50 for turn in turns})
    most_rows = other_rows + len(turns) + spare_rows
    planner = planner_of(cost_of(base, draft_ms=0.01), Offering("suffix", offers), model)
    planner._consultant.expected = 0.9
    planner.draft(turns, other_rows, most_rows)
    assert other_rows + sum(turn.rows for turn in turns) <= most_rows
    left = spare_rows
    for turn, (length, _, limit) in zip(turns, requests, strict=True):
        assert len(turn.draft) <= limit
        if length is not None:
            assert len(turn.draft) == min(length, limit, left), "who fixed a length earlier comes first"
            left -= len(turn.draft)
    for turn in turns:
        turn.cut(0)
    planner.draft(turns, other_rows, other_rows)
    assert all(turn.rows == 1 for turn in turns), "there was no room even for these"


def test_rows_of_fixed_lengths_count_for_what_is_planned_beside_them():
    """A row that would be cheap in a pass of its own is dear on top of them."""
    lengths = []
    for fixed in (None, 6):
        other, turn = turn_of(num_assistant_tokens=fixed), turn_of()
        offers = Offering("suffix", {other.request: [0.01] * (fixed or 0), turn.request: [0.6] * 3})
        planner = planner_of(cost_of([10, 10.1, 10.2, 10.3, 10.5, 190]), offers)
        planner.draft([other, turn])
        assert len(other.draft) == (fixed or 0)
        lengths.append(len(turn.draft))
    assert lengths == [3, 1]
