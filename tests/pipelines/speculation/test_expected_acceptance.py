"""What is expected of a model before it is asked: as much as it showed, and hope returns while it is left alone."""

from __future__ import annotations

import math
import random

import pytest

from outrider.pipelines.speculation.acceptance import GREEDY
from outrider.pipelines.speculation.budgets import TOLERANCE
from outrider.pipelines.speculation.draft_cost import FORGET, DraftTime
from outrider.pipelines.speculation.draft_model_policy import RESTS, DraftModelPolicy
from outrider.pipelines.speculation.expected_acceptance import HOPED, RECOVER, Expected, ExpectedAcceptance

from .odds import Behind, Odds, OddsDrafter, OddsModel
from .planning import answer, cost_of, draft_of, planner_of


def test_a_draft_model_that_never_pays_is_hardly_ever_asked():
    draft = draft_of()
    model = OddsModel("draft_model", {draft.request: [0.01] * 32})
    none = OddsDrafter("suffix", {draft.request: []})
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], draft_ms=2.0), none, model)
    for _ in range(1000):
        draft.cut(0)
        draft.draft_ms = 0.0
        planner.draft([draft])
        planner.observe([draft], [[3]], None)
    assert 0 < model.num_taken < 50


def test_a_model_that_is_often_wrong_behind_texts_is_asked_as_much_as_before_where_it_drafts_alone():
    """After texts it is asked where they do not know what follows."""
    alone, behind = draft_of(mode="draft"), draft_of()
    model = OddsModel("draft_model", {alone.request: [0.9] * 32, behind.request: [0.05] * 32})
    planner = planner_of(
        cost_of([10, 12, 14, 18, 24, 60], draft_ms=1.0), OddsDrafter("suffix", {behind.request: []}), model
    )

    def drafted() -> int:
        alone.cut(0)
        planner.draft([alone])
        length = len(alone.proposals)
        planner.observe([alone], [[*alone.tokens, 3]], None)
        return length

    for _ in range(100):
        before = drafted()
    for _ in range(300):
        behind.cut(0)
        planner.draft([behind])
        planner.observe([behind], [[3]], None)
    assert drafted() == before > 2


@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_is_sure_in_stretches_is_asked_where_only_long_drafts_pay(seed):
    """As without VNNI, where the first row of a draft is dear. Half of the places are hard, so on average a proposal
    is right so seldom that no draft would pay; but where the model is sure, it stays so. Each answer has to be read
    first."""
    rng, cost = random.Random(seed), cost_of([70, 115, 135, 170, 215, 700], draft_ms=3.0)
    cost.drafts["draft_model"].row_ms = 0.5
    model = Behind("draft_model", {}, 0)
    planner = planner_of(cost, OddsDrafter("suffix", {}), model)
    spent_ms = plain_ms = 0.0
    for _ in range(12):
        draft, model.missed, model.clock_s = draft_of(mode="draft"), 60, 0.0
        for _ in range(60):
            sure = rng.random() < 0.5
            model.odds[draft.request] = [0.98] * 12 if sure else [0.3, *[0.9] * 8]
            draft.cut(0)
            draft.draft_ms = 0.0
            planner.draft([draft])
            num_kept = len(draft.proposals) if sure else 0
            planner.observe([draft], [[*draft.tokens[:num_kept], 3]], None)
            spent_ms += cost.pass_ms([(draft.rows, 0)])
            plain_ms += (1 + num_kept) * 70
        planner.release(draft.request)
        spent_ms += 1e3 * model.clock_s
    assert plain_ms / spent_ms > 1.25, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize(("draft_ms", "estimate"), [(0.5, 0.9), (2.0, 0.9), (1.0, 0.6)])
def test_after_a_spell_of_slowness_the_draft_model_is_asked_again(draft_ms, estimate):
    draft = draft_of()
    model = OddsModel("draft_model", {draft.request: [estimate] * 32})
    none = OddsDrafter("suffix", {draft.request: []})
    planner = planner_of(cost_of([10, 10.5, 11, 11.5, 12, 20], draft_ms), none, model)

    def num_asked(num_passes: int) -> int:
        before = model.num_passes
        for _ in range(num_passes):
            answer(planner, draft)
        return model.num_passes - before

    assert num_asked(100) >= 100, "it does not pay"
    model.slowness = 50.0
    assert num_asked(500) < 50
    model.slowness = 1.0
    assert num_asked(2500) > 0
    assert num_asked(500) >= 500, "as before"


@pytest.mark.slow
@pytest.mark.parametrize("slowness", [10.0, 50.0])
@pytest.mark.parametrize(("draft_ms", "estimate"), [(0.5, 0.9), (2.0, 0.9), (1.0, 0.6)])
def test_a_draft_model_that_stays_slow_costs_little_in_the_long_run(slowness, draft_ms, estimate):
    draft = draft_of()
    model = OddsModel("draft_model", {draft.request: [estimate] * 32})
    none = OddsDrafter("suffix", {draft.request: []})
    cost = cost_of([10, 10.5, 11, 11.5, 12, 20], draft_ms)
    planner = planner_of(cost, none, model)
    model.slowness = slowness
    for _ in range(300):
        answer(planner, draft)
    model.clock_s = lost_ms = plain_ms = 0.0
    for _ in range(3000):
        answer(planner, draft)
        plain_ms += draft.rows * cost.pass_ms([(1, 0)])
        lost_ms += cost.pass_ms([(draft.rows, 0)]) - draft.rows * cost.pass_ms([(1, 0)])
    assert lost_ms + 1e3 * model.clock_s < TOLERANCE * plain_ms


@pytest.mark.parametrize("num_rests", [RESTS, 100 * RESTS])
def test_what_is_known_of_a_model_ages_as_much_as_if_every_pass_without_it_were_noted(num_rests):
    model, cost = OddsModel("draft_model", {}), cost_of([2, 2.2, 2.4, 2.6, 3, 8], draft_ms=1.0)
    policy, draft = DraftModelPolicy(model, planner_of(cost, model)._drafters, Odds()), cost.of_draft("draft_model")
    first = following = 0.1
    policy.expected.known["auto", GREEDY] = Expected(first, following)
    draft.observe(DraftTime(1.0), 3.0)
    slowness = math.log(draft.pass_ms(1))
    for _ in range(num_rests):
        policy.rest(cost)
        first += RECOVER * (HOPED - first)
        slowness *= 1 - FORGET
    assert policy.expected.of(("auto", GREEDY)) == pytest.approx((first, first), rel=1e-3)
    assert draft.pass_ms(1) == pytest.approx(math.exp(slowness))


def test_the_first_proposals_of_drafts_and_those_after_them_are_expected_apart():
    """But as long as only one of them was seen, it tells of both."""
    kind, expected = ("draft", GREEDY), ExpectedAcceptance()
    for _ in range(100):
        expected.observe(kind, 0.3, is_first=True)
    assert expected.of(kind) == pytest.approx((0.3, 0.3), abs=0.02)
    for _ in range(100):
        expected.observe(kind, 0.3, is_first=True)
        expected.observe(kind, 0.98, is_first=False)
    assert expected.of(kind) == pytest.approx((0.3, 0.98), abs=0.1)
