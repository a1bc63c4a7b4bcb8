"""The planner alone, on proposals whose odds are known: as many tokens as pay, and never much time lost."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.model.target import Window
from outrider.pipelines.speculation import budgets
from outrider.pipelines.speculation.acceptance import GREEDY, AcceptanceModel, Conditions
from outrider.pipelines.speculation.budgets import ALLOWANCE, TOLERANCE
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import Draft
from outrider.pipelines.speculation.drafter_set import DrafterSet
from outrider.pipelines.speculation.drafters.base import ModeDrafters
from outrider.pipelines.speculation.overhead import FEWEST
from outrider.pipelines.speculation.planner import PER_DRAFT, Planner

from ..fakes import new_request
from .planning import (
    BASES,
    DEAR_FIRST,
    Behind,
    Odds,
    OddsDrafter,
    OddsModel,
    cost_of,
    draft_of,
    planner_of,
    speed_of,
    stopped,
)  # fmt: skip


@given(BASES, st.lists(st.lists(st.floats(0.01, 0.99), max_size=6), min_size=1, max_size=3), st.integers(0, 9))
def test_the_draft_is_worth_as_much_as_the_best_of_all_cuts(base, odds, other_rows):
    cost, drafts = cost_of(base), [draft_of() for _ in odds]
    offering = OddsDrafter("suffix", {draft.request: estimates for draft, estimates in zip(drafts, odds, strict=True)})
    planner = planner_of(cost, offering)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(budgets, "ALLOWANCE", math.inf)  # so that no draft exceeds the budget
        planner.draft(drafts, other_rows)

    def worth(lengths) -> float:
        total = 0.0
        for estimates, length in zip(odds, lengths, strict=True):
            probability = 1.0
            for estimate in estimates[:length]:
                probability *= estimate
                total += probability
        rows = other_rows + sum(1 + length for length in lengths)
        return total - planner.rate * cost.pass_ms([(rows, 0)])

    chosen = worth([len(draft.proposals) for draft in drafts])
    best = max(worth(lengths) for lengths in product(*(range(len(estimates) + 1) for estimates in odds)))
    assert chosen == pytest.approx(best, abs=1e-9)


def test_a_number_of_tokens_that_is_asked_for_is_drafted_whatever_it_costs():
    draft = draft_of(num_assistant_tokens=4)
    planner = planner_of(cost_of([10, 90, 190, 290, 390, 990]), OddsDrafter("suffix", {draft.request: [0.01] * 9}))
    planner.draft([draft])
    assert draft.tokens == [7] * 4
    assert draft.probability == pytest.approx(0.01**4)


def test_what_hot_requests_reject_ends_drafting_for_such_requests_alone():
    offering, acceptance = OddsDrafter("suffix", {}), AcceptanceModel({"suffix": (2.0, 0.0)})
    drafters = DrafterSet({"suffix": ModeDrafters((offering,))}, acceptance, 12)
    planner = Planner(drafters, acceptance, cost_of([10, 11, 12, 13, 14, 20]), stopped)

    def num_drafted(**sampling) -> int:
        draft = draft_of(mode="suffix", **sampling)
        offering.odds[draft.request] = [0.0] * 4
        planner.draft([draft])
        if sampling.get("temperature") == 3.0:
            planner.observe([draft], [[3]], None)
        return len(draft.proposals)

    others = [{}, {"do_sample": True, "temperature": 1.0}]
    before = [num_drafted(**sampling) for sampling in others]
    hot = [num_drafted(do_sample=True, temperature=3.0) for _ in range(50)]
    assert min(before) > 1
    assert hot[0] > 1
    assert hot[-1] == 1  # a second row is free
    assert [num_drafted(**sampling) for sampling in others] == before


def test_without_a_cost_model_nothing_is_planned():
    draft, model = draft_of(), OddsModel("draft_model", {})
    planner_of(None, OddsDrafter("suffix", {draft.request: [0.99] * 9}), model).draft([draft])
    assert draft.tokens == []


@settings(max_examples=60)
@given(BASES, st.floats(0.5, 0.999), st.floats(0.0, 4.0), st.integers(2, 200), st.integers(0, 5000))
def test_drafts_that_always_fail_lose_no_more_than_the_budget_allows(base, claimed, draft_ms, num_passes, missed):
    """However sure the drafters are of themselves, and however much the draft model has to catch up with."""
    cost, draft = cost_of(base, draft_ms), draft_of()
    cost.drafts["draft_model"].row_ms = draft_ms / 10
    text = OddsDrafter("suffix", {draft.request: [claimed] * 4})
    model = Behind("draft_model", {draft.request: [claimed] * 32}, missed)
    planner = planner_of(cost, text, model)
    lost = plain = 0.0
    for _ in range(num_passes):
        draft.cut(0)
        draft.draft_ms = 0.0
        caught_up_ms = cost.drafts["draft_model"].row_ms * model.missed
        planner.draft([draft])
        caught_up_ms -= cost.drafts["draft_model"].row_ms * model.missed
        assert draft.draft_ms >= caught_up_ms
        lost += cost.pass_ms([(draft.rows, 0)]) + draft.draft_ms - cost.pass_ms([(1, 0)])
        assert lost <= TOLERANCE * plain + ALLOWANCE * cost.pass_ms([(2, 0)]) + 1e-6
        plain += cost.pass_ms([(1, 0)])
        planner.observe([draft], [[3]], None)


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


@settings(max_examples=60)
@given(BASES, CLAIMS, st.floats(0.1, 4.0), st.integers(2, 80), st.randoms(use_true_random=False))
def test_no_answer_of_a_batch_is_delayed_beyond_the_bound(base, claims, draft_ms, num_passes, rng):
    """By all drafts of its passes, its own and those of others, whoever claims what of them and however many stand;
    also one that drafts nothing. Rows of fixed lengths are no drafts of anybody here."""
    cost = cost_of(base, draft_ms)
    cost.drafts["draft_model"].row_ms = draft_ms / 4
    drafts = [draft_of(mode=mode, num_assistant_tokens=length) for mode, length, *_ in claims]
    sure = {draft.request: [odds] * 8 for draft, (_, _, odds, _, _) in zip(drafts, claims, strict=True)}
    text = OddsDrafter("suffix", sure)
    written = {draft.request: [odds] * 32 for draft, (*_, odds, _) in zip(drafts, claims, strict=True)}
    model = Behind("draft_model", written, 9)
    planner = planner_of(cost, text, model)
    plain_ms = cost.pass_ms([(1, 0)] * len(drafts))
    allowed_ms = ALLOWANCE * cost.pass_ms([(1 + len(drafts), 0)])
    delay, plain = [0.0] * len(drafts), [0.0] * len(drafts)
    for _ in range(num_passes):
        for draft in drafts:
            draft.cut(0)
            draft.draft_ms = 0.0
        planner.draft(drafts)
        planned = [draft.request.config.num_assistant_tokens is None for draft in drafts]
        rows = sum(draft.rows for draft in drafts)
        bare = sum(1 if is_planned else draft.rows for draft, is_planned in zip(drafts, planned, strict=True))
        waits = cost.pass_ms([(rows, 0)]) - cost.pass_ms([(bare, 0)]) + sum(draft.draft_ms for draft in drafts)
        kept = []
        for i, (draft, (*_, luck)) in enumerate(zip(drafts, claims, strict=True)):
            kept.append([*draft.tokens[: sum(rng.random() < luck for _ in draft.proposals)], 3])
            if planned[i]:
                delay[i] += waits
                assert delay[i] <= TOLERANCE * plain[i] + allowed_ms + 1e-6
                delay[i] -= (len(kept[i]) - 1) * plain_ms
                plain[i] += len(kept[i]) * plain_ms
        planner.observe(drafts, kept, None)


def test_a_draft_that_is_dropped_gives_back_only_what_the_last_rows_of_the_pass_take():
    """Where its own first row was dear, that price falls on the row of another now."""
    cost, drafts = cost_of([10, 12, 12.05, 12.1, 12.15, 12.5], draft_ms=1.5), [draft_of(), draft_of()]
    text = OddsDrafter("suffix", {drafts[0].request: [0.6] * 8, drafts[1].request: [0.5]})
    model = OddsModel("draft_model", {drafts[0].request: [0.99] * 32, drafts[1].request: []})
    planner = planner_of(cost, text, model)
    planner._policies[0].expected[GREEDY] = 0.99
    for draft in drafts:
        budget = planner._budget(cost, draft, drafts, 10.0)
        budget.lost_ms += budget.remaining_ms - 2.5
    planner.draft(drafts)
    rows, draft_ms = sum(draft.rows for draft in drafts), sum(draft.draft_ms for draft in drafts)
    assert rows > len(drafts)
    assert cost.pass_ms([(rows, 0)]) - 10 + draft_ms <= 2.5 + 1e-9


@pytest.mark.parametrize(("others_ms", "drafted"), [(2.5, [0, 1]), (500.0, [1, 0])])
def test_what_may_still_be_lost_is_spent_on_the_answer_that_may_lose_no_more(others_ms, drafted):
    """Only its own accepted tokens let drafting go on; among answers with little the likeliest token comes first."""
    cost, drafts = cost_of([10, 12, 14, 18, 24, 72]), [draft_of(), draft_of()]
    planner = planner_of(cost, OddsDrafter("suffix", {drafts[0].request: [0.9] * 8, drafts[1].request: [0.95] * 8}))
    for draft, remaining_ms in zip(drafts, (2.5, others_ms), strict=True):
        budget = planner._budget(cost, draft, drafts, 10.0)
        budget.lost_ms = budget.allowance_ms - remaining_ms
    planner.draft(drafts)
    assert [len(draft.proposals) for draft in drafts] == drafted


def test_an_answer_beside_many_failing_drafters_loses_as_little_as_one_alone():
    """And so does one that comes when the others have drafted for long."""
    cost = cost_of([10, 11, 12, 14, 17, 40], draft_ms=2.0)
    drafters, off = [draft_of() for _ in range(16)], draft_of(mode="off")
    text = OddsDrafter("suffix", {draft.request: [0.9] * 8 for draft in drafters})
    planner = planner_of(cost, text)
    for beside in ([], [off]):
        drafts, delay = [*drafters, *beside], 0.0
        plain_ms = cost.pass_ms([(len(drafts), 0)])
        for _ in range(200):
            for draft in drafts:
                draft.cut(0)
            planner.draft(drafts)
            delay += cost.pass_ms([(sum(draft.rows for draft in drafts), 0)]) - plain_ms
            planner.observe(drafts, [[3]] * len(drafts), None)
        assert delay <= TOLERANCE * 200 * plain_ms + ALLOWANCE * cost.pass_ms([(1 + len(drafts), 0)])
        for draft in drafters:  # all their later drafts are accepted
            for _ in range(20):
                planner.observe([draft], [[7] * 30], None)


@given(BASES, st.floats(0.9, 0.999), st.integers(1, 9), st.sampled_from([3, 4000]))
def test_a_draft_risks_only_a_share_of_the_remaining_budget_until_drafts_were_accepted(
    base, claimed, num_passes, prompt_length
):
    """However long the prompt took."""
    request = new_request([1] * prompt_length, 99, mode="auto", num_assistant_tokens=None)
    cost, draft = cost_of(base), Draft(request, 0, 32)
    pass_ms = cost.pass_ms([(1, 0)])
    planner = planner_of(cost, OddsDrafter("suffix", {request: [claimed] * 32}))
    left = ALLOWANCE * cost.pass_ms([(2, 0)])
    for _ in range(num_passes):
        draft.cut(0)
        planner.draft([draft])
        draft_ms = cost.pass_ms([(draft.rows, 0)]) - pass_ms
        assert draft_ms <= PER_DRAFT * left + 1e-6 or all(
            sum(draft.probabilities[:n]) < planner.rate * sum(draft.prices_ms[:n])
            for n in range(1, draft.rows)
            if sum(draft.prices_ms[:n]) <= PER_DRAFT * left
        )
        planner.observe([draft], [[3]], None)
        left += TOLERANCE * pass_ms - draft_ms
    draft.cut(0)
    before = len(draft.proposals)
    planner.observe([draft], [[7] * 99], None)
    planner.draft([draft])
    assert len(draft.proposals) > before


@given(BASES, st.lists(st.floats(0.5, 0.99), min_size=1, max_size=9), st.integers(1, 40))
def test_plain_answers_in_between_do_not_change_what_is_drafted(base, odds, num_plain):
    """Their rate is lower, so that more would seem to pay."""
    lengths = []
    for plain_between in (0, num_plain):
        cost, draft, plain = cost_of(base), draft_of(), draft_of(mode="off")
        planner = planner_of(cost, OddsDrafter("suffix", {draft.request: odds}))
        for _ in range(5):
            planner.draft([draft])
            planner.observe([draft], [[*draft.tokens, 3]], None)
            draft.cut(0)
        for _ in range(plain_between):
            planner.draft([plain])
            planner.observe([plain], [[3]], None)
        planner.draft([draft])
        lengths.append(len(draft.proposals))
    assert lengths[0] == lengths[1]


def test_the_acceptance_model_observes_every_proposal_up_to_the_first_rejection():
    seen = []

    class Noting(Odds):
        def observe(self, features, accepted, conditions):
            seen.append((features.values[0], accepted, conditions))

    draft = draft_of(num_assistant_tokens=4, do_sample=True, temperature=2.0)
    offering = OddsDrafter("suffix", {draft.request: [0.1, 0.2, 0.3, 0.4]})
    planner = Planner(DrafterSet({"auto": ModeDrafters((offering,))}, Odds(), 12), Noting(), None)
    planner.draft([draft])
    planner.observe([draft], [[7, 7, 5]], None)
    hot = Conditions("exact", 1)
    assert seen == [(0.1, True, hot), (0.2, True, hot), (0.3, False, hot)]
    planner.release(draft.request)
    assert offering.odds == {}


@pytest.mark.parametrize("reading_ms", [0.05, 1.0, 20.0])
def test_reading_logits_costs_an_answer_no_more_than_its_budget_allows(reading_ms):
    """Of drafters that never have anything to propose."""
    now_ms, passes, pass_ms = 0.0, 400, 10.0

    class Reading(OddsDrafter):
        def read_logits(self, tokens, logits):
            nonlocal now_ms
            now_ms += reading_ms

    draft = draft_of()
    planner = planner_of(cost_of([pass_ms] * 6), Reading("suffix", {draft.request: []}), clock=lambda: now_ms / 1e3)
    for _ in range(passes):
        planner.draft([draft])
        planner.read(draft.request, Window([3], 2, [0]), np.zeros((1, 12), np.float32), None)
        planner.observe([draft], [[3]], pass_ms)
    assert now_ms > 0
    allowed_ms = TOLERANCE * passes * pass_ms + ALLOWANCE * pass_ms
    assert now_ms <= allowed_ms + (1 + FEWEST) * reading_ms  # the last one, and those before its price is known


def test_a_full_pass_leaves_no_room_for_doubtful_drafts():
    """The more requests share a pass, the fewer tokens are drafted for each."""
    lengths = []
    for num_requests in (1, 4, 16):
        drafts = [draft_of() for _ in range(num_requests)]
        offering = OddsDrafter("suffix", {draft.request: [0.7] * 9 for draft in drafts})
        planner = planner_of(cost_of([10, 10.5, 11, 12, 16, 90]), offering)
        for _ in range(60):
            for draft in drafts:
                draft.cut(0)
            planner.draft(drafts)
            planner.observe(drafts, [[7] * (1 + (1 + len(draft.proposals)) // 2) for draft in drafts], None)
        lengths.append(sum(len(draft.proposals) for draft in drafts) / num_requests)
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


@pytest.mark.parametrize(
    ("times", "length"),
    [(DEAR_FIRST, 8), ({1: 10, 2: 60, 3: 61, 4: 62, 6: 64, 9: 67}, 8)],
    ids=["without VNNI", "more than three plain passes"],
)
def test_a_draft_that_pays_is_made_at_once_though_its_first_row_is_dear(times, length):
    """The stake goes by what a draft costs: a share of three plain passes would cut it short, or leave none."""
    cost, draft = CostModel(tuple(times), tuple(map(float, times.values())), (0.0,) * len(times)), draft_of()
    planner_of(cost, OddsDrafter("suffix", {draft.request: [0.97] * length})).draft([draft])
    plain_ms, drafted_ms, taken_ms = (cost.pass_ms([(rows, 0)]) for rows in (1, 2, 1 + length))
    assert PER_DRAFT * ALLOWANCE * plain_ms < taken_ms - plain_ms <= PER_DRAFT * ALLOWANCE * drafted_ms
    assert len(draft.proposals) == length


@given(
    BASES,
    st.lists(st.tuples(st.sampled_from([None, 1, 5, 32]), st.booleans(), st.integers(0, 32)), min_size=1, max_size=9),
    st.integers(0, 40),
    st.integers(0, 60),
)
def test_a_pass_has_no_more_rows_than_it_may(base, requests, other_rows, spare_rows):
    """Whoever drafts, and however much; no answer loses the row of its last token."""
    drafts = []
    for length, _, limit in requests:
        draft = draft_of(num_assistant_tokens=length)
        draft.limit = limit
        drafts.append(draft)
    offers = {
        draft.request: [0.8] * (9 if offers else 0) for draft, (_, offers, _) in zip(drafts, requests, strict=True)
    }
    model = OddsModel("draft_model", {draft.request: [0.9] * 50 for draft in drafts})
    most_rows = other_rows + len(drafts) + spare_rows
    planner = planner_of(cost_of(base, draft_ms=0.01), OddsDrafter("suffix", offers), model)
    planner._policies[0].expected[GREEDY] = 0.9
    planner.draft(drafts, other_rows, most_rows)
    assert other_rows + sum(draft.rows for draft in drafts) <= most_rows
    left = spare_rows
    for draft, (length, _, limit) in zip(drafts, requests, strict=True):
        assert len(draft.proposals) <= limit
        if length is not None:
            assert len(draft.proposals) == min(length, limit, left), "who fixed a length earlier comes first"
            left -= len(draft.proposals)
    for draft in drafts:
        draft.cut(0)
    planner.draft(drafts, other_rows, other_rows)
    assert all(draft.rows == 1 for draft in drafts), "there was no room even for these"


def test_rows_of_fixed_lengths_count_for_what_is_planned_beside_them():
    """A row that would be cheap in a pass of its own is dear on top of them."""
    lengths = []
    for fixed in (None, 6):
        other, draft = draft_of(num_assistant_tokens=fixed), draft_of()
        offers = OddsDrafter("suffix", {other.request: [0.01] * (fixed or 0), draft.request: [0.6] * 3})
        planner = planner_of(cost_of([10, 10.1, 10.2, 10.3, 10.5, 190]), offers)
        planner.draft([other, draft])
        assert len(other.proposals) == (fixed or 0)
        lengths.append(len(draft.proposals))
    assert lengths == [3, 1]


def test_passes_in_which_nobody_is_asked_to_draft_are_charged_to_nobody():
    """Answers without drafters, and such as are left alone, have an account only beside others."""
    off, resting, drafted = draft_of(mode="off"), draft_of(), draft_of()
    offers = OddsDrafter("suffix", {resting.request: [0.9] * 3, drafted.request: [0.9] * 3})
    planner = planner_of(cost_of([10, 10.1, 10.2, 10.3, 10.5, 190]), offers)

    def run(*drafts):
        for draft in drafts:
            draft.cut(0)
        planner.draft(drafts)
        planner.fill(sum(draft.rows for draft in drafts))
        planner.observe(drafts, [[3]] * len(drafts), None)
        return [budget and budget.plain_ms for budget in (planner._budgets.get(draft.request) for draft in drafts)]

    assert run(off) == [None]
    (first,) = run(resting)
    assert first > 0
    planner._budgets[resting.request].attempts.stop()
    assert run(resting, off) == [first, None]
    assert not resting.proposals
    later = run(resting, drafted, off)
    assert later[0] > first
    assert min(later[1:]) > 0
    assert not resting.proposals
    assert drafted.proposals
