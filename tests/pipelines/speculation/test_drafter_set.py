"""A drafter that fails is left out for the answers that it fails for, and for no others."""

from __future__ import annotations

import pytest

from outrider.pipelines.speculation.acceptance import AcceptanceModel, Features
from outrider.pipelines.speculation.drafter_set import DrafterSet
from outrider.pipelines.speculation.drafters.base import ModeDrafters

from .broken_drafters import SABOTAGE, BrokenDrafter
from .odds import Odds, OddsDrafter, OddsModel
from .planning import cost_of, draft_of, planner_of


class Failing(OddsModel):
    """Fails in the passes that `breaks` says, given their requests."""

    def __init__(self, drafts, breaks) -> None:
        super().__init__("draft_model", {draft.request: [0.9] * 9 for draft in drafts})
        self.breaks = breaks

    def _run(self, wanted) -> None:
        super()._run(wanted)
        if self.breaks([request for request, _ in wanted]):
            raise RuntimeError("this model is broken")


def made(texts=(), model=None) -> DrafterSet:
    return DrafterSet({"auto": ModeDrafters(tuple(texts), () if model is None else (model,))}, Odds(), 12)


def asked(drafter_set, use, drafts):
    """What the draft model answers, by the way in which it is used."""
    for draft in drafts:
        draft.num_scored = len(draft.proposals)
    ask = drafter_set.generated if use == "generate" else drafter_set.score
    return ask(*drafter_set.models, drafts)


USES = pytest.mark.parametrize("use", ["generate", "score"])


@USES
def test_only_the_request_that_breaks_a_pass_of_the_draft_model_loses_it(use, caplog):
    drafts = [draft_of() for _ in range(5)]
    victim = drafts[2].request
    model = Failing(drafts, lambda requests: victim in requests)
    drafter_set = made(model=model)
    answers = asked(drafter_set, use, drafts)
    assert [answer is None for answer in answers] == [False, False, True, False, False]
    assert [drafter_set.can_ask(drafter_set.models[0], draft) for draft in drafts] == [True, True, False, True, True]
    assert model.num_passes == 1 + len(drafts)
    assert "draft_model failed" in caplog.text
    assert "this model is broken" in caplog.text
    others = [draft for draft in drafts if drafter_set.can_ask(drafter_set.models[0], draft)]
    assert None not in asked(drafter_set, use, others)
    assert model.num_passes == 2 + len(drafts), "nobody is tried alone again"
    drafter_set.release(victim)
    assert drafter_set._left_out == {}


@USES
def test_a_draft_model_that_fails_for_several_but_for_none_alone_is_left_out_of_all(use):
    """Else each pass would be tried, fail, and be made up for by one for each."""
    drafts = [draft_of() for _ in range(3)]
    drafter_set = made(model=Failing(drafts, lambda requests: len(requests) > 1))
    assert asked(drafter_set, use, drafts) == [None] * 3
    assert not any(drafter_set.can_ask(drafter_set.models[0], draft) for draft in drafts)


@USES
def test_a_draft_model_that_always_fails_is_tried_once_for_each_request(use):
    drafts = [draft_of() for _ in range(3)]
    model = Failing(drafts, lambda requests: True)
    drafter_set = made(model=model)
    assert asked(drafter_set, use, drafts) == [None] * 3
    assert not any(drafter_set.can_ask(drafter_set.models[0], draft) for draft in drafts)
    assert model.num_passes == 4


@USES
def test_a_draft_model_of_too_few_answers_is_one_that_fails(use, monkeypatch):
    drafts = [draft_of() for _ in range(2)]
    model = Failing(drafts, lambda requests: False)
    monkeypatch.setattr(model, use, lambda wanted: [])
    drafter_set = made(model=model)
    assert asked(drafter_set, use, drafts) == [None] * 2
    assert not any(drafter_set.can_ask(drafter_set.models[0], draft) for draft in drafts)


def test_one_drafters_failure_leaves_the_others_at_work():
    draft = draft_of()
    broken, sound = BrokenDrafter(SABOTAGE["raises"]), OddsDrafter("suffix", {draft.request: [0.9] * 3})
    model = OddsModel("draft_model", {draft.request: [0.9] * 9})
    drafter_set = made((broken, sound), model)
    for _ in range(2):
        assert [proposal.source for proposal, _ in drafter_set.surest(draft)] == ["suffix"] * 3
        assert [p.source for p in drafter_set.chained(draft)] == ["suffix"] * 3 + ["draft_model"] * 6
        assert drafter_set.can_ask(drafter_set.models[0], draft)


def test_a_draft_model_that_fails_leaves_the_texts_at_work():
    drafts = [draft_of() for _ in range(3)]
    text = OddsDrafter("suffix", {draft.request: [0.8] * 8 for draft in drafts})
    model = Failing(drafts, lambda requests: drafts[0].request in requests)
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], draft_ms=0.5), text, model)
    for _ in range(3):
        for draft in drafts:
            draft.cut(0)
            draft.draft_ms = 0.0
        planner.draft(drafts)
        assert all(draft.proposals for draft in drafts)
    assert drafts[0].sources == ["suffix"] * len(drafts[0].proposals)
    assert drafts[0].draft_ms == 0, "it was asked again"
    assert all(draft.draft_ms for draft in drafts[1:]), "it was not asked any more"


def test_time_is_told_by_the_clock_that_was_given():
    draft = draft_of()
    model = OddsModel("draft_model", {draft.request: [0.9] * 9})
    model.cost = cost_of([10, 12, 14, 18, 24, 60], draft_ms=250.0)
    drafter_set = DrafterSet({"auto": ModeDrafters(models=(model,))}, Odds(), 12, model.clock)
    drafter_set.generated(model, [draft])
    drafter_set.score(model, [draft])
    assert drafter_set.model_s == pytest.approx(0.5)


def test_the_likeliest_proposal_is_that_under_the_conditions_of_the_request():
    acceptance, hot = AcceptanceModel(), {"do_sample": True, "temperature": 4.0}
    cold_draft, hot_draft = draft_of(), draft_of(**hot)
    texts = [OddsDrafter(name, {draft.request: [0.5] for draft in (cold_draft, hot_draft)}) for name in ("a", "b")]
    drafter_set = DrafterSet({"auto": ModeDrafters(tuple(texts))}, acceptance, 12)
    for _ in range(20):
        for name in ("a", "b"):
            acceptance.observe(Features(name, (0.5,)), name == "a", cold_draft.conditions)
            acceptance.observe(Features(name, (0.5,)), name == "b", hot_draft.conditions)
    for draft, expected in ((cold_draft, "a"), (hot_draft, "b")):
        proposal, probability = next(drafter_set.surest(draft))
        assert proposal.source == expected
        assert probability == acceptance.probability(Features(expected, (0.5,)), draft.conditions) > 0.6
