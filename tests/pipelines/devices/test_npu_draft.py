"""A draft model on an NPU: all of OpenVINO's code for it is real, except that its parts compute on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.pipelines import LLMPipeline, UnsupportedModel
from outrider.pipelines.devices.npu_model import NpuModel
from outrider.pipelines.engine.backend import Backend
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from tests.on_npu import STAND_IN

pytestmark = pytest.mark.slow

CODE = "def area(width, height):\n    return width * height\n"
RENAME = f"Rename `width` to `breadth`.\n\n{CODE}"
SAMPLED = {"do_sample": True, "temperature": 1.2, "rng_seed": 12}
DRAFTED = {"mode": "draft", "num_assistant_tokens": 4}
UNPLUGGED = RuntimeError("Exception from src/plugin.cpp:7:\nThe device was unplugged.\n")


@pytest.fixture(scope="module")
def pipeline(npu_draft_pair: Path) -> LLMPipeline:
    """With the target on the CPU."""
    pipeline = LLMPipeline(npu_draft_pair, draft_device="NPU", exact=True, cache_tokens=4096, **STAND_IN)
    pipeline.warm_up()
    return pipeline


@pytest.fixture
def drafter(pipeline: LLMPipeline) -> DraftModel:
    drafter = pipeline.speculation._drafting[0].drafter
    assert isinstance(drafter, DraftModel)
    return drafter


@pytest.fixture(autouse=True)
def nothing_is_left(pipeline: LLMPipeline) -> Iterator[None]:
    yield
    (drafting, *_) = pipeline.speculation._drafting
    assert (drafting.pool.num_free, drafting.pool.num_blocks) == (1, 1)
    load = pipeline.backend.load
    assert (load.waiting, load.running) == (0, 0)


def num_drafted(answer: Any) -> int:
    return answer.stats[0].drafted_by.get("draft_model", 0)


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("prompt", [RENAME, CODE * 40, "x"], ids=["short", "longer than it reads", "one token"])
def test_the_text_is_that_of_plain_decoding(pipeline, prompt, options):
    options = {"max_new_tokens": 40, "ignore_eos": True, "apply_chat_template": False, **options}
    plain = pipeline.generate(prompt, mode="off", **options)
    for mode in ({"mode": "draft", "num_assistant_tokens": 7}, DRAFTED, {"mode": "draft"}, {"mode": "auto"}):
        assert pipeline.generate(prompt, **options, **mode) == plain
    drafted = pipeline.generate(prompt, **options, **DRAFTED)
    assert num_drafted(drafted) > 0
    assert drafted.stats[0].passes < 40


def test_it_drafts_what_it_would_draft_on_the_cpu(pipeline, npu_draft_pair):
    on_cpu = LLMPipeline(npu_draft_pair, exact=True, cache_tokens=4096)
    for prompt in (RENAME, CODE * 3):
        options = {"max_new_tokens": 60, "ignore_eos": True, **DRAFTED}
        here, there = (each.generate(prompt, **options).stats[0] for each in (pipeline, on_cpu))
        assert abs(here.passes - there.passes) <= 2  # devices round differently


def test_of_several_requests_one_has_the_model_and_all_have_their_texts(pipeline):
    options = {"max_new_tokens": 30, "ignore_eos": True}
    prompts = [RENAME, CODE, CODE * 3]
    alone = [pipeline.generate(prompt, mode="off", **options) for prompt in prompts]
    drafted_alone = [num_drafted(pipeline.generate(prompt, **options, **DRAFTED)) for prompt in prompts]
    together = pipeline.generate(prompts, **options, **DRAFTED)
    assert together.texts == list(map(str, alone))
    first, *others = (stats.drafted_by.get("draft_model", 0) for stats in together.stats)
    assert first == drafted_alone[0] > 0
    assert all(drafted < all_of_it for drafted, all_of_it in zip(others, drafted_alone[1:], strict=True))
    assert pipeline.generate(prompts, **options, mode="auto").texts == together.texts


def test_where_its_window_is_full_it_begins_anew(pipeline, drafter, monkeypatch):
    monkeypatch.setattr(drafter, "_max_context", 120)
    monkeypatch.setattr(drafter, "_reach", 60)
    options = {"max_new_tokens": 150, "ignore_eos": True}
    plain = pipeline.generate(RENAME, mode="off", **options)
    answer = pipeline.generate(RENAME, **options, **DRAFTED)
    assert answer == plain
    assert num_drafted(answer) > 100


def test_its_price_is_measured_and_reading_a_text_is_part_of_it(pipeline, drafter):
    cost = pipeline.speculation.cost
    assert cost is not None
    draft = cost.drafts["draft_model"]
    assert draft.token_ms > 0
    stream = pipeline.stream(CODE, max_new_tokens=5, ignore_eos=True, **DRAFTED)
    request = stream._request
    assert drafter.num_behind(request) == 256, "a pass that begins a text has so many rows, needed or not"
    stream.finish()


class Unplugged:
    """A request that fails after some passes."""

    def __init__(self, request: Any, passes: int) -> None:
        self._request = request
        self._left = passes

    def infer(self, *args: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise UNPLUGGED
        return self._request.infer(*args, **options)

    def get_tensor(self, name: str) -> Any:
        return self._request.get_tensor(name)


@pytest.mark.parametrize("passes", [0, 6])
def test_without_it_an_answer_goes_on_if_its_device_fails(pipeline, caplog, monkeypatch, passes):
    options = {"max_new_tokens": 40, "ignore_eos": True}
    plain = pipeline.generate(RENAME, mode="off", **options)
    model = pipeline.speculation._drafting[0].model
    with monkeypatch.context() as patch:
        patch.setattr(model, "_request", Unplugged(model._request, passes))
        answer = pipeline.generate(RENAME, **options, **DRAFTED)
    assert answer == plain
    assert (num_drafted(answer) > 0) == (passes > 0)
    assert "The drafter draft_model failed" in caplog.text
    assert "NPU failed" in caplog.text
    again = pipeline.generate(RENAME, **options, **DRAFTED)
    assert again == plain
    assert num_drafted(again) > num_drafted(answer), "it is asked again"


@pytest.mark.parametrize(("draft_ms", "is_said"), [(9.0, True), (0.1, False)])
def test_a_warning_says_once_where_it_loses_time(pipeline, caplog, monkeypatch, draft_ms, is_said):
    cost = CostModel((1, 2, 9, 33), (4.0, 4.5, 9.0, 30.0), (0.0,) * 4, {"draft_model": DraftCost(draft_ms)})
    monkeypatch.setattr(pipeline.speculation, "_has_warned", False)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            pipeline.speculation._warn_if_it_loses(cost)
    assert caplog.text.count("takes 9.0 ms a token on NPU") == is_said


def test_it_drafts_for_a_target_on_the_npu_too(npu_draft_pair):
    both = LLMPipeline(npu_draft_pair, "NPU", draft_device="NPU", MAX_PROMPT_LEN=64, MIN_RESPONSE_LEN=64, **STAND_IN)
    both.warm_up()
    models: list[Any] = [both.speculation._target, both.speculation._drafting[0].model]
    assert all(isinstance(model, NpuModel) for model in models)
    assert [model.num_tokens for model in models] == [128, 1024]
    backend: Backend = both.backend
    for prompt in (RENAME, CODE):
        options = {"max_new_tokens": 30, "ignore_eos": True}
        plain = both.generate(prompt, mode="off", **options)
        for mode in (DRAFTED, {"mode": "auto"}, {"mode": "chained"}):
            assert both.generate(prompt, **options, **mode) == plain
    drafted = both.generate([RENAME, CODE], max_new_tokens=20, ignore_eos=True, **DRAFTED)
    assert all(stats.drafted_by["draft_model"] > 0 for stats in drafted.stats), "one request comes after the other"
    assert backend.load.running == 0


def test_weights_that_an_npu_does_not_take_are_refused(embedded_pair):
    with pytest.raises(UnsupportedModel, match=r"draft has weights of type i8.*--draft-weights int4"):
        LLMPipeline(embedded_pair, draft_device="NPU", exact=False, **STAND_IN)
