"""Loss budgets: no answer loses more to drafting than it may, its own or that of others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.model.target import Window
from outrider.pipelines.speculation.budgets import ALLOWANCE, LEAST_ALLOWANCE, TOLERANCE
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import PER_DRAFT, Draft, best_prefix
from outrider.pipelines.speculation.expected_acceptance import Expected
from outrider.pipelines.speculation.overhead import FEWEST
from outrider.pipelines.speculation.planner import Planner

from ..fakes import new_request
from .odds import Clock, OddsDrafter, OddsModel
from .planning import BASES, DEAR_FIRST, DRAFTING, Drafting, Losses, cost_of, draft_of, hand_on, kept_by, planner_of

CLAIMS = st.lists(
    st.tuples(
        st.sampled_from(["auto", "auto", "draft", "suffix", "off"]),
        st.sampled_from([None, None, None, 3]),
        st.sampled_from([0.01, 0.5, 0.99]),
        st.sampled_from([0.01, 0.99]),
        st.sampled_from([0.0, 0.0, 0.6, 1.0]),
    ),
    min_size=2,
    max_size=17,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(BASES, st.floats(0.5, 0.999), DRAFTING, st.integers(2, 200))
def test_drafts_that_always_fail_lose_no_more_than_the_budget_allows(base, claimed, drafting, num_passes):
    """However sure the drafters are of themselves, and however much a model has to catch up with; by the clocks of the
    models and of Python, which hands on the target's states to a head."""
    cost, draft, clock = drafted_with(base, drafting), draft_of(), Clock()
    models = [each.of({draft.request: [claimed] * 32}, clock) for each in drafting]
    planner = planner_of(cost, OddsDrafter("suffix", {draft.request: [claimed] * 4}), *models, clock=clock)
    losses = Losses(1, cost.pass_ms([(1, 0)]), ALLOWANCE * cost.pass_ms([(2, 0)]))
    read_prompts(planner, [draft])
    for _ in range(num_passes):
        draft.cut(0)
        draft.draft_ms = 0.0
        began_s, models_s = clock.now, sum(model.clock_s for model in models)
        planner.draft([draft])
        models_ms = 1e3 * (sum(model.clock_s for model in models) - models_s)
        assert draft.draft_ms == pytest.approx(models_ms, abs=1e-6)
        hand_on(planner, [draft])
        took_ms = cost.pass_ms([(draft.rows, 0)]) + models_ms + 1e3 * (clock.now - began_s)
        losses.passed(took_ms - losses.plain_ms, [[3]])
        planner.observe([draft], [[3]], None)
        for model in models:
            model.passed(draft.request, [3])


@settings(max_examples=60)
@given(BASES, CLAIMS, DRAFTING, st.integers(2, 80), st.randoms(use_true_random=False))
def test_no_answer_of_a_batch_is_delayed_beyond_the_bound(base, claims, drafting, num_passes, rng):
    """By all drafts of its passes, its own and those of others, with any claimed and any actual acceptance; not even an
    answer that drafts nothing. Rows of fixed lengths do not count as drafts here."""
    cost, clock = drafted_with(base, drafting), Clock()
    drafts = [draft_of(mode=mode, num_assistant_tokens=length) for mode, length, *_ in claims]
    sure = {draft.request: [odds] * 8 for draft, (_, _, odds, _, _) in zip(drafts, claims, strict=True)}
    text = OddsDrafter("suffix", sure)
    written = {draft.request: [odds] * 32 for draft, (*_, odds, _) in zip(drafts, claims, strict=True)}
    models = [each.of(written, clock) for each in drafting]
    planner = planner_of(cost, text, *models, clock=clock)
    bounded = [draft for draft in drafts if draft.is_bounded]
    plain_ms = cost.pass_ms([(1, 0)] * len(drafts))
    losses = Losses(len(bounded), plain_ms, ALLOWANCE * cost.pass_ms([(1 + len(drafts), 0)]))
    read_prompts(planner, drafts)
    for _ in range(num_passes):
        for draft in drafts:
            draft.cut(0)
            draft.draft_ms = 0.0
        models_s = sum(model.clock_s for model in models)
        planner.draft(drafts)
        models_s = sum(model.clock_s for model in models) - models_s
        hand_on(planner, [draft for draft in drafts if not draft.is_bounded])
        began_s = clock.now
        hand_on(planner, bounded)
        rows = sum(draft.rows for draft in drafts)
        bare = sum(1 if draft.is_bounded else draft.rows for draft in drafts)
        waits_ms = cost.pass_ms([(rows, 0)]) - cost.pass_ms([(bare, 0)]) + 1e3 * (models_s + clock.now - began_s)
        kept = kept_by(rng, drafts, [luck for *_, luck in claims])
        losses.passed(waits_ms, [tokens for draft, tokens in zip(drafts, kept, strict=True) if draft.is_bounded])
        planner.observe(drafts, kept, None)
        for model in models:
            for draft, tokens in zip(drafts, kept, strict=True):
                model.passed(draft.request, tokens)


@given(BASES, st.floats(0.5, 0.999), st.integers(1, 9), st.integers(1, 99))
def test_answers_after_one_that_lost_its_allowance_lose_next_to_none_of_theirs(base, claimed, num_answers, num_passes):
    """All drafts fail, and each answer learns nothing from those before it but what they lost."""
    cost, text = cost_of(base), OddsDrafter("suffix", {})
    planner = planner_of(cost, text)
    plain_ms, drafted_ms = cost.pass_ms([(1, 0)]), cost.pass_ms([(2, 0)])
    lost_ms = allowed_ms = 0.0
    for _ in range(num_answers):
        draft = draft_of()
        text.odds[draft.request] = [claimed] * 8
        for _ in range(num_passes):
            draft.cut(0)
            planner.draft([draft])
            lost_ms += cost.pass_ms([(draft.rows, 0)]) - plain_ms
            planner.observe([draft], [[3]], None)
        planner.release(draft.request)
        allowed_ms += TOLERANCE * num_passes * plain_ms + LEAST_ALLOWANCE * drafted_ms
        assert lost_ms <= allowed_ms + (ALLOWANCE - LEAST_ALLOWANCE) * drafted_ms + 1e-6


def test_what_drafts_have_gained_back_may_be_lost_again():
    cost, text = cost_of([10, 12, 14, 18, 24, 72]), OddsDrafter("suffix", {})
    planner = planner_of(cost, text)

    def answer(kept: list[int]) -> float:
        """What an answer may lose at first, in passes with a drafted token; each of its passes keeps these tokens."""
        draft = draft_of()
        text.odds[draft.request] = [0.9] * 8
        planner.draft([draft])
        allowance = planner._budgets[draft.request].allowance
        for _ in range(20):
            planner.observe([draft], [kept], None)
            draft.cut(0)
            planner.draft([draft])
        planner.release(draft.request)
        return allowance

    assert answer([3]) == ALLOWANCE
    assert answer([3]) == LEAST_ALLOWANCE
    assert answer([7] * 4) == LEAST_ALLOWANCE
    assert answer([7] * 4) == ALLOWANCE


def drafted_with(base: list[float], drafting: list[Drafting]) -> CostModel:
    return replace(cost_of(base), drafts={each.name: each.cost for each in drafting})


def read_prompts(planner: Planner, drafts: list[Draft]) -> None:
    """Read prompts in so many passes that it is known how long it takes to hand on the results."""
    for _ in range(FEWEST):
        hand_on(planner, drafts)


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
    """However long the prompt took, and unless nothing so short is faster than plain decoding."""
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
            sum(draft.probabilities[:n]) < sum(draft.prices_ms[:n]) / pass_ms
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


def test_after_fast_answers_short_copies_are_drafted_where_they_are_faster_than_plain_decoding():
    """Where rows are dear, only long drafts are worth as much as the recent passes. They take all that an answer may
    lose, so that nothing more would be drafted for it if one failed."""
    cost = CostModel(tuple(DEAR_FIRST), tuple(map(float, DEAR_FIRST.values())), (0.0,) * len(DEAR_FIRST))
    fast, next_one = draft_of(), draft_of()
    planner = planner_of(cost, OddsDrafter("suffix", {fast.request: [0.99] * 13, next_one.request: [0.9] * 3}))
    for _ in range(40):
        fast.cut(0)
        planner.draft([fast])
        planner.observe([fast], [[*fast.tokens, 3]], None)
    planner.draft([next_one])
    assert next_one.proposals
    assert next_one.gain(planner.rate) < 0
    assert sum(next_one.prices_ms) <= PER_DRAFT * planner._budgets[next_one.request].allowance_ms


@given(BASES, st.floats(0.9, 0.999), st.floats(0.1, 2), st.integers(0, 8), st.integers(1, 9))
def test_so_does_one_that_a_model_generates_or_scores(base, claimed, draft_ms, offered, num_passes):
    """A model that is right as often as is expected of it; what it writes pays if it gains more than what the text
    drafter offers."""
    cost, draft = cost_of(base, draft_ms), draft_of()
    text = OddsDrafter("suffix", {draft.request: [0.7] * offered})
    planner = planner_of(cost, text, OddsModel("draft_model", {draft.request: [claimed] * 32}))
    planner._policies[0].expected.known[draft.kind] = Expected(claimed, claimed)
    pass_ms, left = cost.pass_ms([(1, 0)]), ALLOWANCE * cost.pass_ms([(2, 0)])
    for _ in range(num_passes):
        draft.cut(0)
        draft.draft_ms = 0.0
        planner.draft([draft])
        spent_ms = cost.pass_ms([(draft.rows, 0)]) - pass_ms + draft.draft_ms
        within = [sum(draft.prices_ms[:n]) + n * draft_ms <= PER_DRAFT * left + 1e-6 for n in range(1, draft.rows)]
        gains = [sum(draft.probabilities[:n]) - planner.rate * sum(draft.prices_ms[:n]) for n in range(1, draft.rows)]
        copied = best_prefix([0.7**n for n in range(1, offered + 1)], cost.rows_ms(1, 1, 0, offered), planner.rate)[1]
        pays = [gain > copied + planner.rate * n * draft_ms for n, gain in enumerate(gains, 1)]
        assert spent_ms <= PER_DRAFT * left + 1e-6 or not any(map(all, zip(within, pays, strict=True)))
        planner.observe([draft], [[3]], None)
        left += TOLERANCE * pass_ms - spent_ms


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


def test_reading_logits_for_answers_that_drafted_well_delays_another_no_more_than_it_may_lose():
    """Eight answers gain from drafts for a while; then one comes that never drafts, and they have nothing to offer."""
    now_ms, reading_ms, passes = 0.0, 0.1, 300

    class Reading(OddsDrafter):
        def read_logits(self, tokens, logits):
            nonlocal now_ms
            now_ms += reading_ms

    drafts, plain = [draft_of() for _ in range(8)], draft_of(mode="off")
    cost = cost_of([5.0, 5.2, 5.4, 6.0, 7.0, 10.0])
    text = Reading("suffix", {draft.request: [0.95] * 8 for draft in drafts})
    planner = planner_of(cost, text, clock=lambda: now_ms / 1e3)

    def step(taking_part: list[Draft]) -> None:
        for draft in taking_part:
            draft.cut(0)
        planner.draft(taking_part)
        for draft in taking_part:
            planner.read(draft.request, Window([3], 2, [0]), np.zeros((1, 12), np.float32), None)
        planner.observe(taking_part, [[*draft.tokens, 3] for draft in taking_part], None)

    for _ in range(100):
        step(drafts)
    text.odds = {draft.request: [] for draft in drafts}
    before_ms = now_ms
    for _ in range(passes):
        step([*drafts, plain])
    plain_ms = cost.pass_ms([(1, 0)] * 9)
    allowed_ms = TOLERANCE * passes * plain_ms + ALLOWANCE * cost.pass_ms([(1, 0)] * 10)
    assert 0 < now_ms - before_ms <= allowed_ms + len(drafts) * reading_ms


def test_passes_in_which_nobody_is_asked_to_draft_are_charged_to_nobody():
    """Answers without drafters, and those for which nothing is tried, have an account only together with others."""
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


def test_answers_that_come_and_go_beside_one_delay_it_no_more_than_its_budget_allows():
    """Also by what it takes to return to passes without drafts once they have gone."""
    cost = replace(cost_of([10, 10.1, 10.2, 10.3, 10.5, 190]), change_ms=2.0)
    off, text, last = draft_of(mode="off"), OddsDrafter("suffix", {}), 0
    planner = planner_of(cost, text)
    plain_ms = cost.pass_ms([(1, 0)])
    losses = Losses(1, plain_ms, ALLOWANCE * (cost.pass_ms([(2, 0)]) + cost.change_ms) + 2 * cost.change_ms)
    for n in range(600):
        drafts = [off]
        if n % 2:
            drafts = [off, draft_of()]
            text.odds[drafts[1].request] = [0.99] * 8
        planner.draft(drafts)
        rows = sum(draft.rows for draft in drafts)
        size = max(rows + planner.fill(rows), cost.rows[0])
        others_ms = cost.pass_ms([(len(drafts), 0)]) - plain_ms
        losses.passed(cost.pass_ms([(size, 0)]) + (size != last) * cost.change_ms - plain_ms - others_ms, [[3]])
        last = size
        planner.observe(drafts, [[3]] * len(drafts), None)
        for draft in drafts[1:]:
            planner.release(draft.request)


def test_nothing_is_read_for_an_answer_that_is_left_alone():
    read = []

    class Reading(OddsDrafter):
        def read_logits(self, tokens, logits):
            read.append(tokens)

    draft = draft_of()
    planner = planner_of(cost_of([10] * 6), Reading("suffix", {draft.request: []}))
    for num_read in (1, 1):
        planner.draft([draft])
        planner.read(draft.request, Window([3], 2, [0]), np.zeros((1, 12), np.float32), None)
        planner.observe([draft], [[3]], None)
        planner._budgets[draft.request].attempts.stop()
        assert len(read) == num_read
