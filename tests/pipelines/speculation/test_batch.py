"""The batch: what a draft keeps is worth as much as it can be."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.pipelines.speculation.acceptance import Features
from outrider.pipelines.speculation.draft import Batch, best_prefix
from outrider.pipelines.speculation.drafters.base import Proposal

from .planning import BASES, cost_of, draft_of


@given(BASES, st.lists(st.floats(0.01, 1), max_size=12), st.floats(0.01, 1), st.integers(1, 9))
def test_what_is_kept_of_a_draft_is_worth_as_much_as_the_best_of_its_beginnings(base, estimates, rate, other_rows):
    batch, draft = Batch(cost_of(base), 1 + other_rows), draft_of()
    for estimate in estimates:
        proposal = Proposal(7, "suffix", Features("suffix"))
        batch.take(draft, proposal, draft.probability * estimate, 0.0)
    worths = [sum(draft.probabilities[:n]) - rate * sum(draft.prices_ms[:n]) for n in range(len(estimates) + 1)]
    batch.cut_to_best(draft, rate)
    assert worths[len(draft.proposals)] == pytest.approx(max(worths), abs=1e-9)
    assert batch.rows == other_rows + draft.rows


@given(BASES, st.integers(0, 12), st.integers(0, 12), st.integers(1, 9), st.floats(0, 3))
def test_what_is_cut_of_a_draft_is_as_if_it_had_not_been_taken(base, kept, cut, other_rows, python_row_ms):
    batches = [Batch(cost_of(base), 1 + other_rows, python_row_ms=python_row_ms) for _ in range(2)]
    drafts = [draft_of() for _ in batches]
    for batch, draft, length in zip(batches, drafts, (kept, kept + cut), strict=True):
        for _ in range(length):
            batch.take(draft, Proposal(7, "suffix", Features("suffix")), 1.0, 0.0)
    batches[1].cut(drafts[1], kept)
    assert (batches[1].rows, drafts[1].tokens) == (batches[0].rows, drafts[0].tokens)
    assert batches[1].spent_ms == pytest.approx(batches[0].spent_ms)


@given(
    BASES, st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 4), st.integers(0, 2)), max_size=30), st.floats(0, 3)
)
@example([2, 2.2, 3.4, 3.6, 9, 18], [(1, 3, 1), (0, 1, 0), (1, -2, 0)], 0.0)
def test_a_row_is_priced_by_the_pass_as_it_is_then(base, changes, python_row_ms):
    """Whichever drafts have grown and been cut before, also where one is full."""
    batch, drafts = Batch(cost_of(base), 3, python_row_ms=python_row_ms), [draft_of() for _ in range(3)]
    drafts[1].limit = 4
    for i, change, asked in changes:
        for _ in range(change):
            batch.take(drafts[i], Proposal(7, "suffix", Features("suffix")), 1.0, 0.0)
        batch.cut(drafts[i], len(drafts[i].proposals) + min(0, change))
        draft = drafts[asked]  # only one, which may be the one asked last
        price_ms = batch.cost.row_ms(batch.rows, draft.rows, draft.context) + python_row_ms
        assert batch.row_ms(draft) == pytest.approx(price_ms)


@given(BASES, st.lists(st.floats(0.01, 1), max_size=31), st.floats(0.01, 1), st.integers(1, 9), st.floats(0, 3))
def test_only_tokens_are_left_out_that_cannot_pay_even_with_those_behind_them(
    base, estimates, rate, other_rows, python_row_ms
):
    gains = []
    for least in (0.0, rate):  # at a rate of 0 everything is taken
        batch, draft = Batch(cost_of(base), 1 + other_rows, python_row_ms=python_row_ms), draft_of()
        for estimate in estimates:
            if not batch.take(draft, Proposal(7, "suffix", Features("suffix")), draft.probability * estimate, least):
                break
        gains.append(best_prefix(draft.probabilities, draft.prices_ms, rate)[1])
    assert gains[0] == pytest.approx(gains[1], abs=1e-9)
