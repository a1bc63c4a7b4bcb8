"""Prompts that are read while answers are drafted for: as fast as with plain decoding, at the expense of the drafts."""

from __future__ import annotations

import math
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.pipelines.engine.scheduler import PREFILL_ROWS_BESIDE_DECODING
from outrider.pipelines.speculation.budgets import ALLOWANCE
from outrider.pipelines.speculation.owed_rows import MOST_SHARE

from .odds import OddsDrafter, OddsModel
from .planning import BASES, Losses, cost_of, draft_of, kept_by, planner_of

LUCKS = st.lists(st.sampled_from([0.0, 0.5, 0.9, 1.0]), min_size=1, max_size=6)


@settings(max_examples=60)
@example([10, 10.5, 11, 12, 14, 30], [0.9, 0.9, 1.0], 1.0, 3000, Random(1))
@given(BASES, LUCKS, st.floats(0.1, 4.0), st.integers(1, 3000), st.randoms(use_true_random=False))
def test_a_prompt_is_read_as_fast_beside_drafts_as_without_them(base, lucks, draft_ms, num_tokens, rng):
    """But for what is owed in the end, and a little where rows take as long as the passes that they make up for. And no
    answer loses more than it may, what the prompt is given for the drafts included."""
    cost, drafts = cost_of(base, draft_ms), [draft_of() for _ in lucks]
    text = OddsDrafter("suffix", {draft.request: [0.9] * 8 for draft in drafts})
    model = OddsModel("draft_model", {draft.request: [0.9] * 32 for draft in drafts})
    planner, number = planner_of(cost, text, model), len(drafts)
    plain_ms = cost.pass_ms([(number, 0)])
    losses = Losses(number, plain_ms, ALLOWANCE * cost.pass_ms([(1 + number, 0)]))
    left, took_ms, longest_ms = num_tokens, 0.0, 0.0
    while left:
        rows = min(left, PREFILL_ROWS_BESIDE_DECODING + planner.num_owed_rows)
        owed = max(0, rows - PREFILL_ROWS_BESIDE_DECODING)
        for draft in drafts:
            draft.cut(0)
            draft.draft_ms = 0.0
        planner.draft(drafts, rows, math.inf, owed)
        drafted_ms = cost.pass_ms([(rows + sum(draft.rows for draft in drafts), 0)])
        drafted_ms += sum(draft.draft_ms for draft in drafts)
        waits_ms = drafted_ms - cost.pass_ms([(rows - owed + number, 0)])
        kept = kept_by(rng, drafts, lucks)
        losses.passed(waits_ms, kept)
        planner.observe(drafts, kept, None)
        left, took_ms, longest_ms = left - rows, took_ms + drafted_ms, max(longest_ms, waits_ms)
    whole, rest = divmod(num_tokens, PREFILL_ROWS_BESIDE_DECODING)
    expected_ms = whole * cost.pass_ms([(PREFILL_ROWS_BESIDE_DECODING + number, 0)])
    expected_ms += cost.pass_ms([(rest + number, 0)]) if rest else 0.0
    row_ms = cost.pass_ms([(PREFILL_ROWS_BESIDE_DECODING + number, 0)]) / PREFILL_ROWS_BESIDE_DECODING
    assert took_ms <= 1.05 * expected_ms + longest_ms / (1 - MOST_SHARE) + 2 * row_ms


def test_what_is_owed_is_forgotten_where_nothing_is_read_any_more():
    draft, cost = draft_of(), cost_of([10, 10.5, 11, 11.5, 12, 20])
    planner = planner_of(cost, OddsDrafter("suffix", {draft.request: [0.95] * 8}))
    planner.draft([draft], PREFILL_ROWS_BESIDE_DECODING)
    assert draft.proposals
    planner.observe([draft], [[3]], None)
    assert planner.num_owed_rows > 0
    draft.cut(0)
    planner.draft([draft])
    planner.observe([draft], [[3]], None)
    assert planner.num_owed_rows == 0
