"""Who is handed the results of passes: the drafters that are likely to draft from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.pipelines.model.target import Window
from outrider.pipelines.speculation.draft_cost import DraftCost

from .odds import Clock, OddsDrafter, OddsHead, OddsModel, Pondered
from .planning import cost_of, draft_of, hand_on, planner_of


@pytest.mark.slow
def test_a_head_that_is_not_worth_considering_is_handed_the_results_of_one_answer_in_eight():
    """That shows when it is worth it again; for answers of another kind nothing changes."""
    clock, read = Clock(), []

    class Reading(Pondered):
        def read(self, request, start, states):
            read.append(request)

    model = Reading({}, clock, 0.3)
    cost = cost_of([2, 2.2, 2.4, 2.6, 3, 8], draft_ms=5.0)
    text = OddsDrafter("suffix", {})
    planner = planner_of(cost, text, model, clock=clock)
    logits, states = np.zeros((1, 12), np.float32), np.zeros((1, 8), np.float32)

    def is_read_for(**options) -> bool:
        draft = draft_of(**options)
        text.odds[draft.request] = []
        model.odds[draft.request] = [0.95] * 8
        for _ in range(60):
            draft.cut(0)
            planner.read(draft.request, Window([3], 2, [0]), logits, states)
            planner.draft([draft])
            planner.observe([draft], [[*draft.tokens, 3]], None)
        planner.release(draft.request)
        return draft.request in read

    assert is_read_for()
    assert sum(is_read_for() for _ in range(32)) == 4
    assert is_read_for(do_sample=True, temperature=2.0)
    assert is_read_for(num_assistant_tokens=2)
    cost.drafts["draft_model"] = replace(cost.drafts["draft_model"], token_ms=0.05)
    assert sum(is_read_for() for _ in range(32)) >= 24


@pytest.mark.parametrize(("head_ms", "is_read"), [(0.1, True), (2.0, False)])
def test_a_head_is_handed_results_where_it_promises_more_than_the_draft_model(head_ms, is_read):
    read = []

    class Reading(OddsModel):
        def read(self, request, start, states):
            read.append(request)

    cost, text = cost_of([2, 2.2, 2.4, 2.6, 3, 8]), OddsDrafter("suffix", {})
    cost.drafts = {"draft_model": DraftCost(0.5), "head": DraftCost(head_ms)}
    planner = planner_of(cost, text, OddsModel("draft_model", {}), Reading("head", {}))
    logits, states = np.zeros((1, 12), np.float32), np.zeros((1, 8), np.float32)
    for options in ({}, {"num_assistant_tokens": 2}):
        draft = draft_of(**options)
        planner.read(draft.request, Window([3], 2, [0]), logits, states)
        assert (draft.request in read) == (is_read or bool(options))


def test_a_head_is_left_out_of_answers_that_may_not_lose_the_time_of_handing_on_states():
    """It would miss those of a pass. Where drafts of a fixed length were asked for it goes on."""
    clock, read = Clock(), []

    class Reading(OddsHead):
        def read(self, request, start, states):
            super().read(request, start, states)
            read.append(request)

    drafts = planned, fixed = [draft_of(mode="draft"), draft_of(mode="draft", num_assistant_tokens=2)]
    head = Reading({draft.request: [0.01] * 32 for draft in drafts}, clock, reading_ms=1.0)
    planner = planner_of(cost_of([10] * 6), OddsDrafter("suffix", {}), head, clock=clock)
    for _ in range(100):
        for draft in drafts:
            draft.cut(0)
        planner.draft(drafts)
        hand_on(planner, drafts)
        planner.observe(drafts, [[3], [3]], None)
    assert len(fixed.proposals) == 2
    assert not planned.proposals
    num_read = read.count(planned.request)
    assert 25 <= num_read <= 60, "30 ms and 0.2 a pass"
    assert read.count(fixed.request) == 100
