"""Where a mode has a draft model and a head, the one that pays more drafts."""

from __future__ import annotations

import pytest

from outrider.pipelines.speculation import expected_acceptance
from outrider.pipelines.speculation.draft_cost import DraftCost

from .odds import OddsDrafter, OddsModel
from .planning import answer, cost_of, draft_of, planner_of


def two_models(draft_ms: float, head_ms: float, draft_odds: float, head_odds: float):
    """A draft model and a head with no other drafters, and a request for both."""
    draft = draft_of()
    model = OddsModel("draft_model", {draft.request: [draft_odds] * 32})
    head = OddsModel("head", {draft.request: [head_odds] * 32})
    cost = cost_of([10, 10.5, 11, 11.5, 12, 20])
    cost.drafts = {"draft_model": DraftCost(draft_ms), "head": DraftCost(head_ms)}
    planner = planner_of(cost, OddsDrafter("suffix", {draft.request: []}), model, head)
    return planner, draft, model, head


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft_ms", "head_ms", "draft_odds", "head_odds", "better"),
    [
        (2.0, 0.5, 0.7, 0.7, "head"),
        (0.5, 2.0, 0.7, 0.7, "draft_model"),
        (1.0, 1.0, 0.3, 0.9, "head"),
        (0.5, 1.0, 0.9, 0.3, "draft_model"),
    ],
)
def test_of_two_models_the_one_that_pays_more_drafts_and_the_other_is_tried_now_and_then(
    draft_ms, head_ms, draft_odds, head_odds, better
):
    planner, draft, *models = two_models(draft_ms, head_ms, draft_odds, head_odds)
    for _ in range(60):
        answer(planner, draft)
    asked = {model.name: model.num_passes for model in models}
    for _ in range(200):
        answer(planner, draft)
    asked = {model.name: model.num_passes - asked[model.name] for model in models}
    other = sum(asked.values()) - asked[better]
    assert asked[better] >= 180
    assert other <= 0.1 * asked[better]


def test_a_model_that_gets_better_than_the_other_takes_its_place(monkeypatch):
    monkeypatch.setattr(expected_acceptance, "RECOVER", 0.01)
    planner, draft, model, head = two_models(1.0, 1.0, 0.6, 0.1)
    for _ in range(60):
        answer(planner, draft)
    head.odds[draft.request] = [0.95] * 32
    before = head.num_passes
    for _ in range(250):
        answer(planner, draft)
    assert head.num_passes > before, "it was never tried again"
    before = head.num_passes, model.num_passes
    for _ in range(60):
        answer(planner, draft)
    assert head.num_passes - before[0] > 60 > model.num_passes - before[1]
