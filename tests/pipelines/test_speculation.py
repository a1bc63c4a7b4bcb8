"""What is tried of a pair before it answers: the promise, in the precision that keeps it, and every size of a pass."""

from __future__ import annotations

import math

import pytest

from outrider.pipelines import LLMPipeline
from outrider.pipelines import speculation as speculation_module
from outrider.pipelines.planner import LONGEST

RENAME = "Rename `width` to `breadth`.\n\ndef area(width, height):\n    return width * height\n"


@pytest.mark.parametrize(("exact_in", "precision"), [({"f32", "bf16"}, None), ({"f32"}, "f32"), (set(), "f32")])
def test_where_few_bits_break_the_promise_all_are_taken(
    embedded_pair, pipeline, monkeypatch, caplog, exact_in, precision
):
    first = LLMPipeline(embedded_pair, cache_tokens=512)
    usual = first.speculation.precision
    if usual == "f32":
        pytest.skip("this processor computes in f32 anyway")
    monkeypatch.setattr(speculation_module, "is_exact", lambda model, blocks, num_tokens: model.precision in exact_in)
    stream = first.stream(RENAME, max_new_tokens=40, mode="off")
    next(stream)
    first.warm_up()
    assert first.speculation.precision == (precision or usual)
    assert first.exact == bool(exact_in)
    assert len(caplog.records) == 2 - len(exact_in)
    stream.finish()
    asked = LLMPipeline(embedded_pair, cache_tokens=512, INFERENCE_PRECISION_HINT=usual)
    asked.warm_up()
    assert asked.speculation.precision == usual, "what the user asked for is not changed"
    full = LLMPipeline(embedded_pair, cache_tokens=512, INFERENCE_PRECISION_HINT="f32") if precision else pipeline
    expected = full.generate(RENAME, max_new_tokens=40, mode="off").texts
    assert first.generate(RENAME, max_new_tokens=40, mode="auto").texts == expected


def test_a_pass_of_each_size_that_a_draft_can_lead_to_is_run_while_there_is_time(embedded_pair, monkeypatch):
    speculation = LLMPipeline(embedded_pair, cache_tokens=256).speculation
    sizes: dict[str, list[int]] = {"target": [], "draft": []}
    for name, model in (("target", speculation.engine.target), ("draft", speculation._draft)):

        def forward(windows, run=model.forward, seen=sizes[name]):
            seen += [len(window.tokens) for window in windows]
            return run(windows)

        monkeypatch.setattr(model, "forward", forward)
    monkeypatch.setattr(speculation_module, "PREPARED_S", math.inf)
    speculation.prepare()
    every = {name: list(range(1, LONGEST + 2)) for name in sizes}
    assert sizes == every
    monkeypatch.setattr(speculation_module, "PREPARED_S", 0.0)
    speculation.prepare()
    assert sizes == every, "nobody waits for longer"
    assert speculation._pool.num_free == speculation._pool.num_blocks
