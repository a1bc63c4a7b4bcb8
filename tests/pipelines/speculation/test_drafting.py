"""A drafter that fails is left out for the answers that it fails for, and for no others."""

from __future__ import annotations

import pytest

from outrider.pipelines.speculation.drafters.base import Chain
from outrider.pipelines.speculation.drafting import Drafting

from .drafting import SABOTAGE, BrokenDrafter
from .planning import Odds, Offering, Writing, cost_of, planner_of, turn_of


class Failing(Writing):
    """Fails in the passes that `breaks` says, given their requests."""

    def __init__(self, turns, breaks) -> None:
        super().__init__("draft_model", {turn.request: [0.9] * 9 for turn in turns})
        self.breaks = breaks

    def _run(self, wanted) -> None:
        super()._run(wanted)
        if self.breaks([request for request, _ in wanted]):
            raise RuntimeError("this model is broken")


def made(texts=(), model=None) -> Drafting:
    return Drafting({"auto": Chain(tuple(texts), model)}, Odds(), 12)


def asked(drafting, use, turns):
    """What the draft model answers, by the way in which it is used."""
    for turn in turns:
        turn.num_read = len(turn.draft)
    return drafting.written(turns) if use == "write" else drafting.read(turns)


USES = pytest.mark.parametrize("use", ["write", "read"])


@USES
def test_only_the_request_that_breaks_a_pass_of_the_draft_model_loses_it(use, caplog):
    turns = [turn_of() for _ in range(5)]
    victim = turns[2].request
    model = Failing(turns, lambda requests: victim in requests)
    drafting = made(model=model)
    answers = asked(drafting, use, turns)
    assert [answer is None for answer in answers] == [False, False, True, False, False]
    assert [drafting.can_ask_model(turn) for turn in turns] == [True, True, False, True, True]
    assert model.num_passes == 1 + len(turns)
    assert "draft_model failed" in caplog.text
    assert "this model is broken" in caplog.text
    others = [turn for turn in turns if drafting.can_ask_model(turn)]
    assert None not in asked(drafting, use, others)
    assert model.num_passes == 2 + len(turns), "nobody is tried alone again"
    drafting.release(victim)
    assert drafting._left_out == {}


@USES
def test_a_draft_model_that_fails_for_several_but_for_none_alone_is_left_out_of_all(use):
    """Else each pass would be tried, fail, and be made up for by one for each."""
    turns = [turn_of() for _ in range(3)]
    drafting = made(model=Failing(turns, lambda requests: len(requests) > 1))
    assert asked(drafting, use, turns) == [None] * 3
    assert not any(drafting.can_ask_model(turn) for turn in turns)


@USES
def test_a_draft_model_that_always_fails_is_tried_once_for_each_request(use):
    turns = [turn_of() for _ in range(3)]
    model = Failing(turns, lambda requests: True)
    drafting = made(model=model)
    assert asked(drafting, use, turns) == [None] * 3
    assert not any(drafting.can_ask_model(turn) for turn in turns)
    assert model.num_passes == 4


@USES
def test_a_draft_model_of_too_few_answers_is_one_that_fails(use, monkeypatch):
    turns = [turn_of() for _ in range(2)]
    model = Failing(turns, lambda requests: False)
    monkeypatch.setattr(model, use, lambda wanted: [])
    drafting = made(model=model)
    assert asked(drafting, use, turns) == [None] * 2
    assert not any(drafting.can_ask_model(turn) for turn in turns)


def test_one_drafters_failure_leaves_the_others_at_work():
    turn = turn_of()
    broken, sound = BrokenDrafter(SABOTAGE["raises"]), Offering("suffix", {turn.request: [0.9] * 3})
    model = Writing("draft_model", {turn.request: [0.9] * 9})
    drafting = made((broken, sound), model)
    for _ in range(2):
        assert [proposal.source for proposal in drafting.surest(turn)] == ["suffix"] * 3
        assert [p.source for p in drafting.chained(turn)] == ["suffix"] * 3 + ["draft_model"] * 6
        assert drafting.can_ask_model(turn)


def test_a_draft_model_that_fails_leaves_the_texts_at_work():
    turns = [turn_of() for _ in range(3)]
    text = Offering("suffix", {turn.request: [0.8] * 8 for turn in turns})
    model = Failing(turns, lambda requests: turns[0].request in requests)
    planner = planner_of(cost_of([10, 12, 14, 18, 24, 60], draft_ms=0.5), text, model)
    for _ in range(3):
        for turn in turns:
            turn.cut(0)
            turn.draft_ms = 0.0
        planner.draft(turns)
        assert all(turn.draft for turn in turns)
    assert turns[0].sources == ["suffix"] * len(turns[0].draft)
    assert turns[0].draft_ms == 0, "it was asked again"
    assert all(turn.draft_ms for turn in turns[1:]), "it was not asked any more"


def test_time_is_told_by_the_clock_that_was_given():
    turn = turn_of()
    model = Writing("draft_model", {turn.request: [0.9] * 9})
    model.cost = cost_of([10, 12, 14, 18, 24, 60], draft_ms=250.0)
    drafting = Drafting({"auto": Chain(model=model)}, Odds(), 12, model.clock)
    drafting.written([turn])
    drafting.read([turn])
    assert drafting.model_s == pytest.approx(0.5)
