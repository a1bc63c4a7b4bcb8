"""The planner alone, on proposals whose odds are known: as many tokens as pay, and never much time lost."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.speculation import budgets
from outrider.pipelines.speculation.acceptance import GREEDY, AcceptanceModel, Conditions
from outrider.pipelines.speculation.budgets import ALLOWANCE
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import PER_DRAFT
from outrider.pipelines.speculation.drafter_set import DrafterSet
from outrider.pipelines.speculation.drafters.base import ModeDrafters
from outrider.pipelines.speculation.expected_acceptance import Expected
from outrider.pipelines.speculation.planner import Planner

from .odds import Odds, OddsDrafter, OddsModel
from .planning import BASES, DEAR_FIRST, Drafting, cost_of, draft_of, planner_of, speed_of, stopped


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


def test_a_draft_that_is_dropped_gives_back_only_what_the_last_rows_of_the_pass_take():
    """Where its own first row was dear, that price falls on the row of another now."""
    cost, drafts = cost_of([10, 12, 12.05, 12.1, 12.15, 12.5], draft_ms=1.5), [draft_of(), draft_of()]
    text = OddsDrafter("suffix", {drafts[0].request: [0.6] * 8, drafts[1].request: [0.5]})
    model = OddsModel("draft_model", {drafts[0].request: [0.99] * 32, drafts[1].request: []})
    planner = planner_of(cost, text, model)
    planner._policies[0].expected.known["auto", GREEDY] = Expected(0.99, 0.99)
    for draft in drafts:
        budget = planner._budget(cost, draft, drafts, 10.0)
        budget.lost_ms += budget.remaining_ms - 2.5
    planner.draft(drafts)
    rows, draft_ms = sum(draft.rows for draft in drafts), sum(draft.draft_ms for draft in drafts)
    assert rows > len(drafts)
    assert cost.pass_ms([(rows, 0)]) - 10 + draft_ms <= 2.5 + 1e-9


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


# What those of the wide pair take beside a pass of 78 ms.
HEAD = Drafting(True, 3.9, 0.12, 5.1, None, 0, 0.0)
DRAFT_MODEL = Drafting(False, 5.7, 0.08, 12.6, None, 0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "drafting"),
    [*product(TEXTS, [None]), *product(("0.6", "0.8", "edit"), (HEAD, DRAFT_MODEL))],
    ids=lambda each: each if isinstance(each, str) else "suffix" if each is None else each.name,
)
def test_cheap_single_rows_make_no_text_slower(text, drafting):
    """Though the first row of a draft is dear then, and only the next ones are cheap: drafts are judged as wholes,
    whether a text drafter, a head or a draft model offers them. Where a model is much surer at some places than at
    others, or so slow that it pays only if it is nearly always right, this does not hold: what it will write is not
    known before it is asked."""
    single, double = (speed_of(fewest_rows, TEXTS[text], 40, drafting) for fewest_rows in (1, 2))
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
    """With any drafters and any draft lengths; no answer loses the row of its last token."""
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
    planner._policies[0].expected.known["auto", GREEDY] = Expected(0.9, 0.9)
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
