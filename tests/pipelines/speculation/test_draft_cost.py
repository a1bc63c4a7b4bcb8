"""What a model that drafts takes: measured as it is in use, and learnt from drafts."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft_cost import DraftCost, DraftTime
from outrider.pipelines.speculation.measuring import measure

from .machine import Clock

pytestmark = pytest.mark.usefixtures("thorough_measuring")


@given(st.integers(0, 3000))
def test_feeding_the_draft_model_takes_each_tokens_own_time_and_that_for_those_before_it(num_tokens):
    model = CostModel((2, 4), (10.0, 11.0), (0.0, 0.0), {"draft_model": DraftCost(2.0, 0.1, 0.001)})
    expected = sum(0.1 + 0.001 * (position + 0.5) for position in range(num_tokens))
    assert model.of_draft("draft_model").feeding_ms(num_tokens) == pytest.approx(expected)


def test_what_context_adds_to_the_draft_models_time_is_measured(monkeypatch):
    clock = Clock(monkeypatch, lambda rows, context: 3 + rows * (0.25 + 0.0001 * context))
    made = measure(clock.run, {"draft_model": clock.run}, 4096)
    assert made.of_draft("draft_model").context_ms == pytest.approx(0.0001, rel=0.02)
    assert made.of_draft("draft_model").feeding_ms(2000) == pytest.approx(2000 * (0.25 + 0.0001 * 1000), rel=0.02)


def test_what_beginning_a_draft_takes_beyond_its_tokens_is_measured(monkeypatch):
    """The first pass after one of the target is slower, and so is each with another number of rows than the one
    before."""
    now, last = [0.0], ["target", 1]

    def target(rows, context):
        now[0], last[0] = now[0] + (20 + rows) / 1e3, "target"

    def draft(rows, context):
        took_ms = 2 + 0.2 * rows + 1.5 * (last[0] == "target") + 1.0 * (last[1] != rows)
        now[0], last[:] = now[0] + took_ms / 1e3, ["draft", rows]

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    made = measure(target, {"draft_model": draft}, 4096).of_draft("draft_model")
    assert (made.token_ms, made.row_ms) == pytest.approx((2.2, 0.2))
    for num_behind, length in ((2, 2), (3, 5), (9, 2)):
        expected_ms = made.beginning_ms() + made.feeding_ms(num_behind - 1) + length * made.pass_ms(1)
        before_ms = now[0]
        target(2, 64)
        draft(num_behind, 64)
        for _ in range(length - 1):
            draft(1, 64)
        assert expected_ms == pytest.approx(1e3 * (now[0] - before_ms) - 22)


def test_the_first_token_of_a_draft_may_take_a_pass_of_another_kind(monkeypatch):
    """As the block of a DFlash head, whose other tokens are only read off."""
    target = Clock(monkeypatch, lambda rows, context: 20 + rows)
    head = Clock(monkeypatch, lambda rows, context: 0.5 if rows == 1 else 6 + rows * 0.25)
    head.run = lambda rows, context: target.__setattr__("now", target.now + head.takes(rows, context) / 1e3)
    monkeypatch.setattr(time, "perf_counter", lambda: target.now)
    of_head = measure(target.run, {"head": head.run}, 4096).of_draft("head")
    assert (of_head.token_ms, of_head.row_ms) == pytest.approx((0.5, 0.25))
    for num_behind in (2, 9):
        first_ms = of_head.beginning_ms() + of_head.feeding_ms(num_behind - 1) + of_head.pass_ms(1)
        assert first_ms == pytest.approx(6 + num_behind * 0.25)


def _expected(cost, length, num_behind):
    return DraftTime(length * cost.pass_ms(1), cost.feeding_ms(num_behind), cost.beginning_ms())


@given(st.floats(0.5, 3), st.floats(0.05, 0.4), st.floats(0.3, 4), st.integers(0, 10_000))
@settings(max_examples=50)
def test_drafts_show_what_beginning_one_takes_what_a_token_and_what_reading(token_ms, row_ms, begin_ms, seed):
    rng, cost = random.Random(seed), DraftCost(1.5, 0.2, begin_ms=2.0)
    for _ in range(300):
        length, num_behind = rng.randint(1, 8), rng.choice((0, 0, 2, 30))
        took_ms = (begin_ms + length * token_ms + num_behind * row_ms) * math.exp(rng.gauss(0, 0.1))
        cost.observe(_expected(cost, length, num_behind), took_ms)
    for length, num_behind in ((1, 0), (2, 2), (4, 0), (8, 0), (1, 30)):
        took_ms = begin_ms + length * token_ms + num_behind * row_ms
        assert _expected(cost, length, num_behind).total_ms == pytest.approx(took_ms, rel=0.3)


def test_dear_tokens_do_not_make_reading_a_prompt_look_dear():
    """As on a machine where a pass over one row takes twice as long in use as when it was measured."""
    cost = DraftCost(3.0, 0.7, begin_ms=4.0)
    for _ in range(30):
        cost.observe(_expected(cost, 8, 0), 4.0 + 8 * 6.0)
    assert cost.pass_ms(1) == pytest.approx(6.0, rel=0.15)
    assert cost.feeding_ms(200) < 1.5 * 200 * 0.7
