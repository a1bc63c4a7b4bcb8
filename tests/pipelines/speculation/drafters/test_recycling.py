"""Token recycling: it proposes what the target's latest logits say, and changes no token."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import Draft
from outrider.pipelines.speculation.drafter_set import DrafterSet
from outrider.pipelines.speculation.drafters.base import ModeDrafters
from outrider.pipelines.speculation.drafters.recycling import TokenRecycling
from outrider.pipelines.speculation.drafters.suffix import Suffix
from outrider.pipelines.speculation.planner import Planner

from ...fakes import VOCABULARY, FakeModel, acceptance, fake_engine, new_request, random_rule, run
from ...serving import RULE, TOKENS, check, requests
from ..planning import stopped

ROWS = st.lists(st.tuples(TOKENS, st.lists(st.floats(-9, 9, width=32), min_size=VOCABULARY, max_size=VOCABULARY)))


@given(st.lists(ROWS.filter(len), max_size=5), TOKENS, st.lists(TOKENS, max_size=3), st.integers(0, 9))
def test_it_goes_on_as_the_last_row_behind_each_token_says(passes, last, ahead, limit):
    drafter, known = TokenRecycling(VOCABULARY), {}
    for rows in passes:
        drafter.read_logits([token for token, _ in rows], np.array([row for _, row in rows], np.float32))
        for token, row in rows:
            known[token] = row.index(max(row))
    expected, token = [], [last, *ahead][-1]
    while token in known and len(expected) < limit:
        token = known[token]
        expected.append(token)
    proposals = islice(drafter.propose(new_request([last]), ahead), limit)
    assert [proposal.token for proposal in proposals] == expected


def test_nothing_is_proposed_behind_the_end_of_an_answer():
    drafter = TokenRecycling(VOCABULARY)
    drafter.read_logits([1, 2, 3], np.eye(VOCABULARY, dtype=np.float32)[[2, 3, 4]])
    request = new_request([1], stop_token_ids=[3])
    assert [proposal.token for proposal in islice(drafter.propose(request), 9)] == [2, 3]


@given(requests())
def test_it_changes_no_token(made):
    engine, pool = fake_engine(FakeModel(RULE), {"recycling": TokenRecycling(VOCABULARY)})
    run(engine, *made)
    for request in made:
        check(request)
    assert pool.num_free == pool.num_blocks


def test_an_answer_profits_from_those_before_it():
    """After each token the same one is always the likeliest, so a draft is right once that was seen."""
    rule = random_rule(3)
    model = FakeModel(lambda prefix: rule(prefix[-1:]))
    engine, _ = fake_engine(model, {"recycling": TokenRecycling(VOCABULARY)})
    passes = []
    for _ in range(2):
        before = model.num_passes
        run(engine, new_request([5, 1], 24, mode="recycling", num_assistant_tokens=5))
        passes.append(model.num_passes - before)
    assert passes[1] == 1 + 4 < passes[0] < 24  # the prompt's pass gives a token, and each of the others six


@pytest.mark.parametrize(
    ("prompt", "second_row_ms", "drafted"),
    [
        ([1, 2, 3], 10.0, ["recycling"]),
        ([1, 2, 3], 19.0, []),
        ([3, 5, 1, 2, 3, 5, 1, 2, 3], 10.0, ["suffix"]),
    ],
    ids=["free", "dear", "copied"],
)
def test_a_doubtful_token_fills_a_second_row_that_is_free_where_nothing_can_be_copied(prompt, second_row_ms, drafted):
    """Every further row takes so long that no draft pays for it."""
    learnt, recycler = acceptance(), TokenRecycling(VOCABULARY)
    drafters = DrafterSet({"recycling": ModeDrafters((Suffix(learnt), recycler))}, learnt, VOCABULARY)
    cost = CostModel((1, 2, 3, 33), (10.0, second_row_ms, 99.0, 999.0), (0.0,) * 4)
    planner = Planner(drafters, learnt, cost, stopped)
    recycler.read_logits([3], np.eye(VOCABULARY, dtype=np.float32)[[4]])
    draft = Draft(new_request(prompt, 99, mode="recycling", num_assistant_tokens=None), len(prompt), 32)
    (doubtful,) = recycler.propose(draft.request)
    assert learnt.probability(doubtful.features) < 0.3
    planner.draft([draft])
    assert draft.sources == drafted


def test_its_memory_does_not_grow():
    drafter, rng = TokenRecycling(VOCABULARY), np.random.default_rng(0)
    size = sum(each.nbytes for each in vars(drafter).values())
    for _ in range(500):
        logits = rng.normal(size=(6, VOCABULARY)).astype(np.float32)
        drafter.read_logits(rng.integers(0, VOCABULARY, 6).tolist(), logits)
    assert sum(each.nbytes for each in vars(drafter).values()) == size == 5 * VOCABULARY
