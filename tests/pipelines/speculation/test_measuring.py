"""Measuring within a budget: what there is time for is measured, the rest is guessed, and passes show what it is."""

from __future__ import annotations

import itertools
import logging
import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.model.timing import NoMeasurement
from outrider.pipelines.speculation import cost_file
from outrider.pipelines.speculation.budgets import ALLOWANCE
from outrider.pipelines.speculation.cost import REFINED_AFTER, CostModel
from outrider.pipelines.speculation.cost_file import measured_cost
from outrider.pipelines.speculation.draft import LONGEST
from outrider.pipelines.speculation.draft_cost import DraftTime
from outrider.pipelines.speculation.measuring import measure, measure_at_fixed_size

from .odds import OddsDrafter
from .planning import draft_of, planner_of

pytestmark = pytest.mark.usefixtures("thorough_measuring")

BUDGET_S = 2.0


class Machine:
    """Passes take what `takes(rows, context)` says, in milliseconds; the first of each number of rows, `prepare_ms`
    more. A draft model's take the share `draft` of that."""

    def __init__(self, monkeypatch, takes, prepare_ms=0.0, draft=0.1) -> None:
        self.now = 0.0
        self.takes = takes
        self.draft_share = draft
        self.prepare_ms = prepare_ms
        self.passes = []
        self.draft_passes = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def target(self, rows: int, context: int) -> None:
        prepare_ms = 0.0 if any(rows == before for before, _ in self.passes) else self.prepare_ms
        self.passes.append((rows, context))
        self.now += (self.takes(rows, context) + prepare_ms) / 1e3

    def drafts(self, has_draft: bool = True):
        return {"draft_model": self.draft} if has_draft else {}

    def draft(self, rows: int, context: int) -> None:
        self.draft_passes.append((rows, context))
        self.now += self.draft_share * self.takes(rows, context) / 1e3


def takes(plain_ms: float, row: float, context: float):
    """A machine for which weights are read in `plain_ms`, a row takes the share `row` of that, with no other part."""
    return lambda rows, tokens: max(plain_ms, row * plain_ms * rows) + context * plain_ms * tokens * math.sqrt(rows)


SLOW = st.tuples(st.floats(300, 3000), st.floats(0.05, 0.6), st.floats(1e-5, 1e-4))


@pytest.mark.parametrize("change_ms", [0.0, 0.5, 6.0])
def test_what_a_change_of_size_takes_is_measured_apart(monkeypatch, change_ms):
    """And is no part of what passes take."""

    class Changing(Machine):
        def target(self, rows: int, context: int) -> None:
            if self.passes and self.passes[-1][0] != rows:
                self.now += change_ms / 1e3
            super().target(rows, context)

    clock = Changing(monkeypatch, lambda rows, context: 10.0 + rows + 0.001 * context)
    made = measure(clock.target, clock.drafts(), 4096)
    assert made.change_ms == pytest.approx(change_ms)
    assert made.pass_ms([(4, 1000)]) == pytest.approx(15.0)


def test_what_a_change_takes_does_not_shrink_where_the_size_that_it_is_measured_with_was_timed_in_a_burst(monkeypatch):
    class Bursting(Machine):
        def target(self, rows: int, context: int) -> None:
            behind = self.passes[-1][0] if self.passes else rows
            self.now += (1.0 * (behind != rows) + 1.0 * (behind == rows == 2)) / 1e3
            super().target(rows, context)

    clock = Bursting(monkeypatch, lambda rows, context: 2.0)
    assert measure(clock.target, clock.drafts(), 4096).change_ms == pytest.approx(1.0)


@given(SLOW, st.booleans(), st.integers(1, 2))
@settings(max_examples=40)
def test_a_slow_model_is_measured_in_the_time_that_there_is_and_a_pass(machine, has_draft, least_rows):
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Machine(monkeypatch, takes(*machine))
        made = measure(clock.target, clock.drafts(has_draft), 2048, least_rows, budget_s=BUDGET_S)
    longest_ms = max(clock.takes(*each) for each in clock.passes)
    needed_s = (2 * clock.takes(least_rows, 64) + has_draft * 2 * 0.1 * clock.takes(1, 64)) / 1e3
    draft_ms = clock.takes(least_rows, 64) + 0.1 * clock.takes(1, 64)  # with the target's pass before it
    last_s = (longest_ms + has_draft * draft_ms) / 1e3  # of those that are needed, one of each model
    assert clock.now <= max(BUDGET_S, needed_s) + last_s
    assert made.is_guessed
    assert made.pass_ms([(1, 64)]) == pytest.approx(clock.takes(least_rows, 64), rel=0.1)
    assert (made.of_draft("draft_model").token_ms > 0) == has_draft
    for rows, context in itertools.product(range(1, 100), (0, 1000, 4000)):
        assert made.row_ms(rows, rows, context) >= 0


@given(SLOW, st.integers(0, 10_000))
@settings(max_examples=40)
def test_fifty_passes_show_what_was_guessed(machine, seed):
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Machine(monkeypatch, takes(*machine), prepare_ms=50.0)
        made = measure(clock.target, {}, 2048, budget_s=BUDGET_S)
    seen = [(rng.choice((2, 3, 4, 6, 9, 16)), rng.randrange(100, 1500)) for _ in range(50)]
    for window in seen:
        made.observe([window], clock.takes(*window) * math.exp(rng.gauss(0, 0.03)))
    for window in seen:
        assert made.pass_ms([window]) == pytest.approx(clock.takes(*window), rel=0.2)


@pytest.mark.parametrize("has_draft", [False, True])
def test_a_small_model_is_measured_whole_in_the_same_time(monkeypatch, has_draft):
    clock = Machine(monkeypatch, lambda rows, context: 3 + 0.2 * rows + 0.0005 * context, prepare_ms=8)
    made = measure(clock.target, clock.drafts(has_draft), 2048, budget_s=BUDGET_S)
    assert clock.now < BUDGET_S
    assert not made.is_guessed
    whole = measure(clock.target, clock.drafts(has_draft), 2048)
    for rows, context in itertools.product(whole.rows, (0, 2000)):
        assert made.pass_ms([(rows, context)]) == pytest.approx(whole.pass_ms([(rows, context)]), rel=1e-6)
    one, other = made.of_draft("draft_model"), whole.of_draft("draft_model")
    assert (one.token_ms, one.feeding_ms(500)) == pytest.approx((other.token_ms, other.feeding_ms(500)), rel=1e-6)


def test_passes_are_timed_one_by_one_until_time_is_up(monkeypatch):
    """On a model in between: sizes that tell most of the others come first."""
    clock = Machine(monkeypatch, takes(60, 0.1, 2e-5), prepare_ms=10)
    made = measure(clock.target, clock.drafts(), 2048, budget_s=BUDGET_S)
    assert BUDGET_S <= clock.now <= BUDGET_S + 0.5
    sizes = list(dict.fromkeys(rows for rows, _ in clock.passes))
    assert sizes[:3] == [2, 5, 9]
    assert (2, 1984) in clock.passes
    assert {rows for rows, _ in clock.draft_passes} == {1, 2, 65}
    for rows in sizes:
        assert made.pass_ms([(rows, 64)]) == pytest.approx(clock.takes(rows, 64), rel=0.2)
    assert dict(zip(made.rows, made.base_doubt, strict=True))[64] > 0


@pytest.mark.parametrize(("least_rows", "most_rows"), [(1, 2), (2, 4), (2, 63), (2, 64), (2, 65), (2, 80), (10, 40)])
def test_no_pass_is_measured_that_has_fewer_or_more_rows_than_a_pass_can_have(monkeypatch, least_rows, most_rows):
    clock = Machine(monkeypatch, lambda rows, context: 10 + rows)
    made = measure(clock.target, clock.drafts(), 2048, least_rows, most_rows)
    sizes = [rows for rows, _ in clock.passes]
    assert (min(sizes), max(sizes)) == (least_rows, made.rows[-1] if most_rows < 65 else 65)
    assert made.rows[-1] <= most_rows
    assert max(rows for rows, _ in clock.draft_passes) == 65, "what holds for the target does not for the draft model"
    assert made.pass_ms([(most_rows, 0)]) == pytest.approx(10 + most_rows)


def test_passes_of_one_size_alone_are_no_measurement(monkeypatch):
    clock = Machine(monkeypatch, lambda rows, context: 10 + rows)
    with pytest.raises(NoMeasurement, match="between 2 and 2 rows"):
        measure(clock.target, {}, 2048, 2, 2)


@given(st.floats(0.5, 3000), st.booleans(), st.randoms(use_true_random=False), st.sampled_from([100, 1152, 9000]))
@settings(max_examples=40)
def test_where_every_pass_takes_as_long_rows_are_free_however_noisy_the_clock(plain_ms, has_draft, rng, max_context):
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Machine(monkeypatch, lambda rows, context: plain_ms * rng.uniform(1, 1.5))
        drafts = clock.drafts(has_draft)
        made = measure_at_fixed_size(clock.target, drafts, max_context, 8, budget_s=BUDGET_S)
    assert {rows for rows, _ in clock.passes} == {1}
    assert all(rows + context <= max_context for rows, context in clock.passes + clock.draft_passes)
    assert 0.999 * plain_ms <= made.pass_ms([(1, 0)]) <= 1.501 * plain_ms
    assert made.pass_ms([(8, 1000)]) == made.pass_ms([(1, 0)])
    assert (made.of_draft("draft_model").token_ms > 0) == has_draft


def test_a_single_row_in_every_pass_leaves_none_for_drafts(monkeypatch):
    clock = Machine(monkeypatch, lambda rows, context: 10)
    with pytest.raises(NoMeasurement, match="single row"):
        measure_at_fixed_size(clock.target, {}, 2048, 1)


@given(SLOW, st.floats(0.01, 0.99), st.integers(0, 10_000))
@settings(max_examples=40)
def test_guessed_costs_lose_little_beyond_what_the_budget_allows(machine, odds, seed):
    """By the clock of a machine of which hardly anything was measured, whatever rows cost there."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Machine(monkeypatch, takes(*machine))
        cost = measure(clock.target, {}, 2048, budget_s=BUDGET_S)
    draft = draft_of()
    planner = planner_of(cost, OddsDrafter("suffix", {draft.request: [odds] * LONGEST}))
    plain_ms, took_ms, num_tokens = clock.takes(2, 2), 0.0, 0
    while num_tokens < 200:
        draft.cut(0)
        planner.draft([draft])
        pass_ms = clock.takes(max(2, draft.rows), 2)
        kept = list(itertools.takewhile(lambda _: rng.random() < odds, draft.tokens))
        planner.observe([draft], [[*kept, 3]], pass_ms)
        took_ms += pass_ms
        num_tokens += len(kept) + 1
    assert took_ms <= num_tokens * plain_ms * 1.05 + 2 * ALLOWANCE * plain_ms


def guessed(monkeypatch) -> tuple[CostModel, Machine]:
    clock = Machine(monkeypatch, takes(1000, 0.3, 5e-5))
    return measure(clock.target, clock.drafts(), 2048, budget_s=BUDGET_S), clock


def observe(cost: CostModel, clock: Machine, num_passes: int, factor: float = 1.0) -> None:
    for n in range(num_passes):
        window = ((2, 3, 5, 9)[n % 4], 200 + 10 * n)
        cost.observe([window], factor * clock.takes(*window))


def test_what_was_learnt_is_known_at_the_next_start(monkeypatch, tmp_path):
    path = tmp_path / "cost.json"
    made, clock = guessed(monkeypatch)
    first = measured_cost(path, lambda: made)
    before = first.pass_ms([(9, 400)])
    observe(first, clock, REFINED_AFTER)
    second = measured_cost(path, lambda: pytest.fail("measured again"))
    true_ms = clock.takes(9, 400)
    assert abs(second.pass_ms([(9, 400)]) - true_ms) < 0.5 * abs(before - true_ms)
    assert sum(second.base_doubt) < sum(first.base_doubt)
    assert [file.name for file in tmp_path.iterdir()] == ["cost.json"]
    observe(second, clock, REFINED_AFTER)
    third = cost_file.load(path)
    assert third != cost_file.load(tmp_path / "none")
    assert sum(third.base_doubt) < sum(second.base_doubt), "and so on, from start to start"


def test_what_was_learnt_is_saved_more_and_more_seldom(monkeypatch, tmp_path):
    saved = []
    made, clock = guessed(monkeypatch)
    monkeypatch.setattr(cost_file, "save", lambda refined, path: saved.append(made._num_learnt))
    cost_file.keep_on(made, tmp_path / "cost.json")
    observe(made, clock, 1000)
    assert saved == [64, 128, 256, 512]


def test_what_was_measured_stays_though_the_machine_was_busy_since(monkeypatch, tmp_path):
    clock = Machine(monkeypatch, lambda rows, context: 3 + 0.2 * rows + 0.0005 * context)
    made = measure(clock.target, clock.drafts(), 2048, budget_s=BUDGET_S)
    observe(made, clock, 500, factor=5.0)
    draft = made.drafts["draft_model"]
    for _ in range(50):
        draft.observe(DraftTime(1.0), 5.0)
    assert made.refined() == made
    for _ in range(200):
        draft.observe(DraftTime(draft.pass_ms(1)), 0.5 * draft.token_ms)
    refined = made.refined().drafts["draft_model"]
    assert refined.token_ms == pytest.approx(0.5 * draft.token_ms, rel=0.1), "it is asked more than it was"


def test_what_cannot_be_kept_is_tried_once(monkeypatch, tmp_path, caplog):
    made, clock = guessed(monkeypatch)
    (tmp_path / "file").write_text("")
    cost_file.keep_on(made, tmp_path / "file" / "cost.json")
    with caplog.at_level(logging.WARNING):
        observe(made, clock, 1000)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be kept" in caplog.text
