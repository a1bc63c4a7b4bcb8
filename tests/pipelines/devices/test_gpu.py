"""Outrider's own engine with one of its models on a GPU; see `tests.on_gpu` for what stands in for that."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest

from outrider.pipelines import LLMPipeline, StructuredOutputConfig, UnsupportedDevice
from outrider.pipelines.devices import devices
from outrider.pipelines.devices.gpu_model import GpuPagedModel
from outrider.pipelines.speculation import runtime
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft_cost import DraftCost
from tests.on_gpu import gpu_present
from tests.on_npu import OnCpu

pytestmark = pytest.mark.slow

MODES = ("off", "lookup", "suffix", "recycling", "draft", "chained", "auto")
CODE = "def area(width, height):\n    return width * height\n"
RENAME = f"Rename `width` to `breadth`.\n\n{CODE}"
SAMPLED = {"do_sample": True, "temperature": 1.2, "rng_seed": 11}
ROUNDING = 0.4  # of logits, between a cache of f16 and the CPU's own


@pytest.fixture(scope="module")
def pipeline(embedded_pair: Path) -> LLMPipeline:
    """With both models on a GPU."""
    with gpu_present():
        pipeline = LLMPipeline(
            embedded_pair, "GPU", engine="outrider", draft_device="GPU.1", cache_tokens=2048, exact=False
        )
    pipeline.warm_up()
    return pipeline


@pytest.fixture(scope="module")
def reference(embedded_pair: Path) -> OnCpu:
    return OnCpu(embedded_pair)


@pytest.mark.parametrize("mode", MODES)
def test_greedy_tokens_are_the_likeliest_in_every_mode(pipeline, reference, mode):
    for prompt in (RENAME, CODE * 12, "x"):
        tokens = pipeline.tokenizer.encode(prompt, False)
        answer = pipeline.generate([tokens], max_new_tokens=40, ignore_eos=True, mode=mode).generations[0]
        assert len(answer.token_ids) == 40
        assert reference.shortfall(tokens, answer.token_ids) < ROUNDING


@pytest.mark.parametrize("mode", MODES[1:])
def test_drafts_of_a_fixed_length_save_passes(pipeline, mode):
    options = {"max_new_tokens": 48, "ignore_eos": True, "mode": mode, "num_assistant_tokens": 5}
    assert pipeline.generate(RENAME, **options).stats[0].passes <= 24


def test_what_openvino_genai_refuses_is_possible(pipeline):
    assert pipeline.modes == MODES
    form = StructuredOutputConfig(regex="[a-c]{3}")
    answer = pipeline.generate("x", structured_output_config=form, max_new_tokens=9, logprobs=2)
    assert re.fullmatch("[a-c]{3}", str(answer))
    assert [len(each.top) for each in answer.generations[0].logprobs] == [2] * len(answer.generations[0].token_ids)
    together = pipeline.generate([RENAME, CODE * 3, "x"], max_new_tokens=16)
    assert len(together.texts) == 3
    banned = together.generations[0].token_ids[0]
    answer = pipeline.generate(RENAME, max_new_tokens=16, logit_bias={banned: -100})
    assert banned not in answer.generations[0].token_ids
    load = pipeline.backend.load
    assert (load.waiting, load.running, load.cache_used) == (0, 0, 0)


def test_the_promise_is_kept_where_it_is_asked_for_and_the_device_can(embedded_pair):
    with gpu_present():
        pipeline = LLMPipeline(embedded_pair, "GPU.0", engine="outrider", exact=True, cache_tokens=2048)
    pipeline.warm_up()
    assert pipeline.exact
    for options in ({}, SAMPLED):
        answers = {mode: pipeline.generate(RENAME, max_new_tokens=40, mode=mode, **options) for mode in MODES}
        assert len(set(map(str, answers.values()))) == 1
        for mode in MODES[1:]:
            drafted = pipeline.generate(RENAME, max_new_tokens=40, mode=mode, num_assistant_tokens=4, **options)
            assert drafted == answers["off"]
            assert drafted.stats[0].passes < answers["off"].stats[0].passes


def test_with_the_draft_model_on_a_gpu_the_text_stays_the_same(embedded_pair):
    with gpu_present():
        pipeline = LLMPipeline(embedded_pair, draft_device="GPU", exact=True, cache_tokens=2048)
    assert isinstance(pipeline.speculation._drafting[0].model, GpuPagedModel)
    for options in ({}, SAMPLED):
        plain = pipeline.generate(RENAME, max_new_tokens=40, mode="off", **options)
        drafted = pipeline.generate(RENAME, max_new_tokens=40, mode="draft", num_assistant_tokens=4, **options)
        assert drafted == plain
        assert drafted.stats[0].drafted_by["draft_model"] > 0


@pytest.fixture
def cache(monkeypatch, tmp_path: Path) -> None:
    """A folder of its own for what is remembered; few kernels are compiled before they are needed."""
    monkeypatch.setattr(runtime, "PREPARED_S", 0.2)
    monkeypatch.setattr("outrider.pipelines.model.profile.user_cache_path", lambda *args, **options: tmp_path)


@pytest.mark.parametrize("price", [1.05, 1.2, None])
def test_exactness_is_checked_once_and_kept_where_it_is_cheap(embedded_pair, monkeypatch, cache, price):
    tried = []

    def keep_exact(model: GpuPagedModel, max_context: int, limit: float) -> float | None:
        tried.append(limit)
        model.keep_to_rows(exact=price is not None and price <= limit)
        return price

    monkeypatch.setattr(GpuPagedModel, "keep_exact", keep_exact)
    for _ in range(2):
        for exact in (None, True, False):
            with gpu_present():
                pipeline = LLMPipeline(embedded_pair, "GPU", engine="outrider", cache_tokens=512, exact=exact)
            assert pipeline.exact == (exact is not False and price is not None and (exact or price < 1.1))
            assert pipeline.speculation._target.exact == pipeline.exact
            assert pipeline.speculation.compilation.price == (None if exact is False else price)
    assert tried == [1.1, math.inf], "what was found is remembered"


def test_a_device_that_fails_while_exactness_is_tried_is_refused_with_what_to_do(embedded_pair, monkeypatch, cache):
    with gpu_present():
        monkeypatch.setattr(GpuPagedModel, "keep_exact", lambda model, *given: failed(model._device))
        with pytest.raises(UnsupportedDevice, match=r"GPU failed .*\(The device was unplugged\): update .*exact=False"):
            LLMPipeline(embedded_pair, "GPU", engine="outrider", cache_tokens=512)


def failed(device: str) -> None:
    with devices.failing(device):
        raise RuntimeError("Exception from src/plugin.cpp:7:\nThe device was unplugged.\n")


def test_where_drafting_measures_slower_nothing_is_drafted(pipeline, monkeypatch):
    steep = CostModel((1, 2, 8, 33), (1.0, 9.0, 60.0, 300.0), (0.0,) * 4, {"draft_model": DraftCost(5.0)})
    monkeypatch.setattr(pipeline.speculation._planner, "cost", steep)
    for prompt in (RENAME, CODE * 12):
        stats = pipeline.generate(prompt, max_new_tokens=40, ignore_eos=True, mode="auto").stats[0]
        assert (stats.drafted, stats.passes) == (0, 40)


class Unplugged:
    """A request that fails after some passes."""

    def __init__(self, request: Any, passes: int) -> None:
        self._request = request
        self._left = passes

    def infer(self, *args: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("Exception from src/plugin.cpp:7:\nThe device was unplugged.\n")
        return self._request.infer(*args, **options)


@pytest.fixture
def with_draft_elsewhere(embedded_pair: Path, cache) -> LLMPipeline:
    with gpu_present():
        return LLMPipeline(embedded_pair, draft_device="GPU", exact=True, cache_tokens=2048)


@pytest.mark.parametrize("passes", [0, 3])
@pytest.mark.parametrize("begun", ["prepare", "measure"])
def test_without_its_draft_model_a_pair_goes_on_if_that_fails_while_it_is_tried(
    with_draft_elsewhere, caplog, begun, passes
):
    pipeline = with_draft_elsewhere
    draft = pipeline.speculation._drafting[0].model
    draft._request = Unplugged(draft._request, passes)
    if begun == "prepare":
        pipeline.warm_up()
    answers = {mode: pipeline.generate(RENAME, max_new_tokens=40, mode=mode) for mode in MODES}
    assert len(set(map(str, answers.values()))) == 1
    assert not any("draft_model" in answer.stats[0].drafted_by for answer in answers.values())
    assert answers["auto"].stats[0].drafted > 0
    assert caplog.text.count("Nothing is drafted with the draft model") == 1
    assert "GPU failed" in caplog.text
    cost = pipeline.speculation.cost
    assert cost is not None
    assert "draft_model" not in cost.drafts
    with gpu_present():
        again = LLMPipeline(pipeline.pair.path, draft_device="GPU", exact=True, cache_tokens=2048)
    again.speculation.measure()
    measured = again.speculation.cost.drafts
    assert measured["draft_model"].token_ms > 0, "what was measured without it is not taken for the whole"


def test_without_its_draft_model_an_answer_goes_on_if_that_fails_on_the_way(with_draft_elsewhere, caplog):
    pipeline = with_draft_elsewhere
    pipeline.warm_up()
    plain = pipeline.generate(RENAME, max_new_tokens=40, mode="off")
    options = {"max_new_tokens": 40, "mode": "draft", "num_assistant_tokens": 4}
    draft = pipeline.speculation._drafting[0].model
    request, draft._request = draft._request, Unplugged(draft._request, 6)
    answer = pipeline.generate(RENAME, **options)
    assert answer == plain
    num_drafted = answer.stats[0].drafted_by["draft_model"]
    assert num_drafted > 0
    assert "The drafter draft_model failed" in caplog.text
    draft._request = request
    assert pipeline.generate(RENAME, **options).stats[0].drafted_by["draft_model"] > num_drafted, "it is asked again"


@pytest.mark.parametrize(("draft_ms", "is_said"), [(9.0, True), (0.1, False)])
def test_a_draft_model_that_loses_time_on_its_device_is_said(
    embedded_pair, monkeypatch, caplog, cache, draft_ms, is_said
):
    cost = CostModel((1, 2, 9, 33), (4.0, 4.5, 9.0, 30.0), (0.0,) * 4, {"draft_model": DraftCost(draft_ms)})
    monkeypatch.setattr(runtime, "measure", lambda *args, **options: cost)
    with gpu_present(), caplog.at_level(logging.WARNING):
        LLMPipeline(embedded_pair, draft_device="GPU", exact=False, cache_tokens=2048).speculation.measure()
    assert ("takes 9.0 ms a token on GPU" in caplog.text) == is_said
    assert bool(caplog.records) == is_said
