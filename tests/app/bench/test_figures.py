"""Figures are read off traces as their definitions say."""

from __future__ import annotations

import pytest

from outrider.app.bench.figures import Figures, accepted_by_depth
from outrider.pipelines.engine.trace import TARGET

from .traces import record

LOOKUP, MODEL = "prompt_lookup", "draft_model"
ANSWER = [
    record(10.0, 10.4, target_s=0.3),  # a part of the prompt
    record(10.4, 11.0, [TARGET], target_s=0.5),
    record(11.0, 11.5, [LOOKUP, LOOKUP, TARGET], [LOOKUP] * 4, target_s=0.4),
    record(11.5, 12.0, [TARGET], [MODEL], target_s=0.3, draft_s=0.1),
]


def test_rates_begin_after_the_first_token() -> None:
    figures = Figures.of([ANSWER], 10.0, 12.0)
    assert figures.new_tokens == 5
    assert figures.ttft_ms == pytest.approx(1000)
    assert figures.tokens_per_s == pytest.approx(4 / 1.0)
    assert figures.tpot_ms == pytest.approx(250)
    assert figures.tokens_per_pass == pytest.approx(4 / 2)
    assert figures.acceptance == pytest.approx(2 / 5)


def test_what_neither_model_took_is_outside() -> None:
    assert Figures.of([ANSWER], 10.0, 12.0).outside == pytest.approx(1 - 1.6 / 2)


def test_a_pass_that_several_requests_share_counts_once_in_a_batch() -> None:
    other = [record(10.4, 11.1, [TARGET], target_s=0.5), record(11.0, 11.5, [TARGET], target_s=0.4)]
    figures = Figures.of([ANSWER, other], 10.0, 12.0)
    assert figures.outside == pytest.approx(1 - 1.6 / 2)
    assert figures.tokens_per_s == pytest.approx(7 / 2.0)  # all tokens by all of the time
    assert figures.ttft_ms == pytest.approx(1050)
    assert figures.tokens_per_pass == pytest.approx(5 / 3)


def test_an_answer_of_one_token_has_no_rate() -> None:
    figures = Figures.of([[record(0, 1, [TARGET], target_s=1.0)]], 0.0, 1.0)
    assert (figures.tokens_per_s, figures.tpot_ms, figures.acceptance, figures.tokens_per_pass) == (None,) * 4
    assert figures.ttft_ms == pytest.approx(1000)


def test_depth_counts_only_what_was_judged() -> None:
    trace = [
        record(0, 1, [LOOKUP, LOOKUP, TARGET], [LOOKUP] * 4),  # two kept, one rejected, one never looked at
        record(1, 2, [LOOKUP, MODEL, TARGET], [LOOKUP, MODEL]),  # all kept
        record(2, 3, [LOOKUP], [LOOKUP, LOOKUP]),  # the answer ends with the first
        record(3, 4, [TARGET], [MODEL]),
    ]
    assert accepted_by_depth([trace]) == {LOOKUP: [(3, 3), (1, 1), (1, 0)], MODEL: [(1, 0), (1, 1)]}
