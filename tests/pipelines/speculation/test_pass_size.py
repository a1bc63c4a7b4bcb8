"""The size of passes: kept while leaving it costs more, and left where other sizes would have gained more."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.speculation.budgets import ALLOWANCE
from outrider.pipelines.speculation.cost import AT_ONCE, CostModel
from outrider.pipelines.speculation.overhead import FEWEST
from outrider.pipelines.speculation.pass_size import PassSize

from .odds import OddsDrafter
from .planning import BASES, Losses, cost_of, draft_of, kept_by, planner_of

CHANGES = st.floats(0.0, 8.0)


def changing(base: list[float], change_ms: float) -> CostModel:
    return replace(cost_of(base), change_ms=change_ms)


@given(BASES, CHANGES, st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_a_pass_is_filled_up_to_the_size_of_the_last_or_not_at_all(base, change_ms, passes):
    """And only where that is no dearer than to change the size."""
    cost, size = changing(base, change_ms), PassSize()
    for rows in passes:
        last, taken = size.rows, size.take(cost, rows, rows)
        rows = max(rows, cost.rows[0])
        assert taken in (rows, last)
        assert taken >= rows
        if taken > rows:
            assert cost.size_ms(last) <= cost.size_ms(rows) + change_ms + 1e-9


@given(BASES, CHANGES, st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_filling_never_costs_more_than_twice_what_changing_each_time_does_and_the_last_filling(base, change_ms, passes):
    """Of passes without drafts: what is filled between two changes is worth one change, and one filling more."""
    cost, size = changing(base, change_ms), PassSize()
    filled_ms, num_changes = 0.0, 0
    for rows in passes:
        last, taken = size.rows, size.take(cost, rows, rows)
        if taken != last:
            assert filled_ms <= 2 * change_ms + 1e-9
            filled_ms, num_changes = 0.0, num_changes + 1
        filled_ms += cost.size_ms(taken) - cost.size_ms(rows)
    assert num_changes <= 1 + sum(a != b for a, b in itertools.pairwise(passes))


def test_sizes_that_alternate_are_all_filled_up_to_the_largest_while_that_is_cheaper():
    cost, size = changing([2.0, 2.0, 2.1, 2.2, 2.4, 5.0], 1.0), PassSize()
    drafts = [(9, 8), (7, 6), (9, 8), (5, 4), (8, 7)]
    taken = [size.take(cost, rows, 1, [0.9] * more, 0.5) for rows, more in drafts * 20]
    assert set(taken) == {9}


def test_drafts_that_only_stand_because_their_rows_are_free_do_not_keep_the_size():
    """They fill it every time, but are not worth as much as its rows take."""
    cost, size = changing([2.0, 2.1, 2.2, 2.4, 2.7, 8.0], 1.0), PassSize()
    size.take(cost, 9, 1, [0.9] * 8, 0.5)
    lasts = []
    for _ in range(20):
        lasts.append(size.last(cost))
        size.take(cost, lasts[-1] or 1, 1, [0.01] * 8 if lasts[-1] else [], 0.5)
    assert lasts[0] == 9
    assert size.rows == cost.rows[0]


@given(BASES, CHANGES, st.integers(1, 40), st.integers(0, 60), st.integers(1, 3), st.integers(1, 200))
def test_rows_behind_the_last_pass_cost_what_the_cheaper_of_filling_and_changing_does(
    base, change_ms, total, last, rows, number
):
    cost = changing(base, change_ms)

    def size_ms(size: int) -> float:
        alone_ms = cost.pass_ms([(size, 0)])
        if last in (0, size):
            return alone_ms
        if size > last:
            return alone_ms + change_ms
        return min(alone_ms + change_ms, cost.pass_ms([(last, 0)]))

    expected = [size_ms(total + i + 1) - size_ms(total + i) for i in range(number)]
    assert cost.rows_ms(total, rows, 0, number, last) == pytest.approx(expected, abs=1e-9)
    means = [(size_ms(total + more) - size_ms(total)) / more for more in range(1, 300)]
    assert cost.least_row_ms(total, last) <= min(means) + 1e-9


@pytest.mark.slow
@given(st.integers(0, 10_000))
def test_passes_that_change_their_size_do_not_make_others_seem_dearer(seed):
    """And how much longer they take is learnt."""
    rng = random.Random(seed)
    cost, change_ms = changing([2.0, 2.1, 2.2, 2.4, 2.7, 8.0], 0.5), rng.uniform(0.4, 1.0)
    before, last = {rows: cost.size_ms(rows) for rows in (2, 4, 9)}, 0
    for _ in range(60 * AT_ONCE):
        rows = rng.choice((2, 4, 9))
        takes_ms = before[rows] + (rows != last) * change_ms
        cost.observe([(rows, 0)], takes_ms * rng.uniform(0.97, 1.03), rows != last)
        last = rows
    assert [cost.size_ms(rows) for rows in before] == pytest.approx(list(before.values()), rel=0.05)
    assert cost.changing_ms == pytest.approx(change_ms, rel=0.25)


def test_what_fills_a_pass_and_whether_its_size_has_changed_are_learnt_from(monkeypatch):
    seen = []
    monkeypatch.setattr(CostModel, "observe", lambda self, *observed: seen.append(observed))
    cost, draft = changing([2.0, 2.0, 2.1, 2.2, 2.4, 5.0], 3.0), draft_of()
    text = OddsDrafter("suffix", {draft.request: []})
    planner, sizes = planner_of(cost, text), []
    for odds in ([0.99] * 8, [0.99] * 8, []):
        text.odds[draft.request] = odds
        draft.cut(0)
        planner.draft([draft])
        sizes.append((draft.rows, planner.fill(draft.rows)))
        planner.observe([draft], [[*draft.tokens, 3]], 20.0)
    assert sizes == [(9, 0), (9, 0), (1, 8)]
    assert seen == [([(9, 2)], 20.0, True), ([(9, 2)], 20.0, False), ([(1, 2), (8, 0)], 20.0, False)]


def test_a_change_of_size_that_plain_decoding_has_too_is_no_delay_by_drafting():
    cost, size = changing([2.0, 2.0, 2.1, 2.2, 2.4, 5.0], 3.0), PassSize()
    size.take(cost, 9, 9)
    for _ in range(2):
        size.take(cost, 1, 1, may_fill=False)
        assert size.delay_ms(cost) == 0
    size.take(cost, 9, 1, [0.9] * 8, 0.5)
    assert size.delay_ms(cost) == pytest.approx(cost.size_ms(9) - cost.size_ms(1) + 3.0)


def test_the_pass_behind_one_with_rows_of_prompts_is_not_learnt_from(monkeypatch):
    """It takes longer than its size and the change tell, or answers would be filled for long."""
    seen = []
    monkeypatch.setattr(CostModel, "observe", lambda self, *observed: seen.append(observed))
    draft = draft_of()
    text = OddsDrafter("suffix", {draft.request: []})
    planner = planner_of(changing([2.0, 2.0, 2.1, 2.2, 2.4, 5.0], 3.0), text)
    for others, target_ms in ((0, 20.0), (8, None), (0, 99.0), (0, 30.0)):
        planner.draft([draft], others)
        planner.fill(draft.rows + others)
        planner.observe([draft], [[3]], target_ms)
    assert [target_ms for _, target_ms, _ in seen] == [20.0, 30.0]


def test_an_answer_that_nobody_is_asked_to_draft_for_is_not_filled():
    draft = draft_of()
    text = OddsDrafter("suffix", {draft.request: []})
    for stops, num_filling in ((False, 7), (True, 0)):
        cost = changing([2.0, 2.0, 2.1, 2.2, 2.4, 5.0], 3.0)
        planner = planner_of(cost, text)
        planner.draft([draft], 8)
        planner.fill(9)
        planner.observe([draft], [[3]], None)
        if stops:
            planner._budgets[draft.request].attempts.stop()
        planner.draft([draft])
        assert planner.fill(2) == num_filling


def test_rows_up_to_the_size_of_the_last_pass_are_drafted_that_would_not_pay_otherwise():
    lengths = []
    for change_ms in (0.0, 3.0):
        cost, draft = changing([2.0, 3.0, 4.0, 4.1, 4.2, 30.0], change_ms), draft_of()
        text = OddsDrafter("suffix", {draft.request: [0.99] * 8})
        planner = planner_of(cost, text)
        for odds in ([0.99] * 8, [0.3] * 3):
            text.odds[draft.request] = odds
            draft.cut(0)
            planner.draft([draft])
            planner.fill(draft.rows)
            planner.observe([draft], [[*draft.tokens, 3]], None)
        lengths.append(len(draft.proposals))
    assert lengths == [1, 3], "two rows are the least in any case"


@pytest.mark.parametrize(("remaining_ms", "length"), [(3.1, 0), (4.5, 8)])
def test_what_it_takes_to_return_to_plain_passes_is_kept_back(remaining_ms, length):
    cost, draft = changing([2.0, 2.2, 2.3, 2.4, 2.6, 9.0], 3.0), draft_of()
    planner = planner_of(cost, OddsDrafter("suffix", {draft.request: [0.99] * 8}))
    budget = planner._budget(cost, draft, [draft], 2.0)
    budget.lost_ms = budget.allowance_ms - remaining_ms
    for price in (planner.overhead.asking, planner.overhead.row):
        for _ in range(FEWEST):
            price.add(0.11 if price is planner.overhead.asking else 0.0)
    planner.draft([draft])
    assert len(draft.proposals) == length


@pytest.mark.slow
@given(
    BASES,
    CHANGES,
    st.lists(st.tuples(st.sampled_from([0.3, 0.6, 0.99]), st.floats(0, 1)), min_size=1, max_size=4),
    st.integers(2, 150),
    st.randoms(use_true_random=False),
)
def test_the_bound_holds_with_what_changes_of_size_take(base, change_ms, claims, num_passes, rng):
    """Beyond it, at most what it takes to return to plain passes: as much filling as two changes are worth."""
    cost, drafts = changing(base, change_ms), [draft_of() for _ in claims]
    text = OddsDrafter("suffix", {})
    planner = planner_of(cost, text)
    plain_ms = cost.pass_ms([(len(drafts), 0)])
    allowed_ms = ALLOWANCE * (cost.pass_ms([(1 + len(drafts), 0)]) + change_ms) + 2 * change_ms
    losses, last = Losses(len(drafts), plain_ms, allowed_ms), max(len(drafts), cost.rows[0])
    for n in range(num_passes):
        for draft, (odds, _) in zip(drafts, claims, strict=True):
            text.odds[draft.request] = [odds] * rng.randrange(10) if n else []
            draft.cut(0)
        planner.draft(drafts)
        rows = sum(draft.rows for draft in drafts)
        size = max(rows + planner.fill(rows), cost.rows[0])
        waits = cost.pass_ms([(size, 0)]) + (size != last) * change_ms - plain_ms
        last = size
        kept = kept_by(rng, drafts, [luck for _, luck in claims])
        losses.passed(waits, kept)
        planner.observe(drafts, kept, None)
