"""A device that fails in the middle of an answer, and the CPU that takes over where that is asked for."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.pipelines import BrokenLogits, CacheTooSmall, DeviceFailed, InvalidOption, LLMPipeline
from outrider.pipelines.devices.spare import Spare
from outrider.pipelines.model import price
from outrider.pipelines.speculation import runtime
from tests.on_gpu import gpu_present
from tests.on_npu import STAND_IN, OnCpu

from .elsewhere import Elsewhere

pytestmark = pytest.mark.slow

CODE = "def area(width, height):\n    return width * height\n"
RENAME = f"Rename `width` to `breadth`.\n\n{CODE}"
ROUNDING = 0.4  # of logits, between devices
FAILURE = "The device was unplugged"
OPTIONS: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True}


class Breakable:
    """A pipeline on another device, and what makes that fail after some passes, and work again."""

    def __init__(self, pipeline: LLMPipeline, fail_after: Callable[[int | None], None]) -> None:
        self.pipeline = pipeline
        self.fail_after = fail_after

    def answer(self, prompt: str) -> tuple[list[int], tuple[int, ...]]:
        tokens = self.pipeline.tokenizer.encode(prompt, False)
        return tokens, self.pipeline.generate([tokens], **OPTIONS).generations[0].token_ids


def with_genai(pair: Path, **options: Any) -> Breakable:
    elsewhere = Elsewhere(pair, "GPU")
    pipeline = elsewhere.open(**options)

    def fail_after(passes: int | None) -> None:
        elsewhere.faulty.fails_after = passes

    return Breakable(pipeline, fail_after)


def with_own_engine(pipeline: LLMPipeline) -> Breakable:
    target = pipeline.speculation._target
    request = target._request
    left: list[int | None] = [None]

    class Failing:
        def infer(self, *args: Any, **options: Any) -> Any:
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise RuntimeError(f"Exception from src/plugin.cpp:7:\n{FAILURE}.\n")
            return request.infer(*args, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(request, name)

    target._request = Failing()

    def fail_after(passes: int | None) -> None:
        left[0] = passes

    return Breakable(pipeline, fail_after)


def on_gpu(pair: Path, **options: Any) -> Breakable:
    with gpu_present():
        options = {"engine": "outrider", "cache_tokens": 2048, "exact": False, **options}
        return with_own_engine(LLMPipeline(pair, "GPU", **options))


def on_npu(pair: Path, **options: Any) -> Breakable:
    return with_own_engine(LLMPipeline(pair, "NPU", MAX_PROMPT_LEN=256, **options, **STAND_IN))


OPENED = {"GenAI on a GPU": with_genai, "a GPU": on_gpu, "an NPU": on_npu}


@pytest.fixture(params=OPENED)
def opened(request: pytest.FixtureRequest) -> Callable[..., Breakable]:
    pair = request.getfixturevalue("npu_pair" if request.param == "an NPU" else "embedded_pair")
    return lambda **options: OPENED[request.param](pair, **options)


@pytest.fixture(scope="module", autouse=True)
def little_is_measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """How fast each pair is on each device matters to no test here; so it is remembered for these tests alone."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("outrider.pipelines.model.profile.user_cache_path", lambda *args, **options: folder)
        monkeypatch.setattr(runtime, "MEASURE_S", 0.0)
        monkeypatch.setattr(runtime, "PREPARED_S", 0.2)
        monkeypatch.setattr(price, "PRICED_S", 0.0)
        yield


@pytest.fixture(scope="module")
def references(embedded_pair: Path, npu_pair: Path) -> dict[Path, OnCpu]:
    return {pair: OnCpu(pair) for pair in (embedded_pair, npu_pair)}


def test_a_failure_is_said_and_the_next_request_is_answered(opened):
    device = opened()
    expected = device.answer(RENAME)
    device.fail_after(2)
    with pytest.raises(DeviceFailed, match=rf"failed on this request \({FAILURE}\): ask again"):
        device.answer(RENAME)
    device.fail_after(None)
    assert device.answer(RENAME) == expected
    assert device.pipeline.backend.load.running == 0


def test_an_answer_goes_on_on_the_cpu_where_that_is_asked_for(opened, references, caplog):
    device = opened(fallback="CPU")
    reference = references[device.pipeline.pair.path]
    device.fail_after(4)
    with caplog.at_level(logging.WARNING):
        stream = device.pipeline.stream(RENAME, **OPTIONS)
        pieces = [piece.text for piece in stream]
    answer = stream.finish()
    assert "".join(pieces) == answer.text
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 30)
    assert any("continue on the CPU" in each.message and FAILURE in each.message for each in caplog.records)
    for prompt in (RENAME, CODE * 9):
        tokens, written = device.answer(prompt)
        assert reference.shortfall(tokens, written) < ROUNDING
    load = device.pipeline.backend.load
    assert (load.waiting, load.running, load.cache_used) == (0, 0, 0)


def test_the_tokens_written_before_a_failure_are_kept(opened, references):
    device = opened(fallback="CPU")
    prompt = device.pipeline.tokenizer.encode(RENAME, False)
    stream = device.pipeline.stream([prompt], mode="auto", **OPTIONS)
    for _ in range(3):
        next(stream)
    before = stream._request.new_tokens.copy()
    device.fail_after(0)
    whole = stream.finish().token_ids
    assert list(whole[: len(before)]) == before
    assert references[device.pipeline.pair.path].shortfall(prompt, whole) < ROUNDING


def test_requests_that_wait_are_answered_as_well_and_can_be_cancelled(embedded_pair):
    device = with_genai(embedded_pair, fallback="CPU")
    device.fail_after(2)
    streams = device.pipeline.streams([RENAME, CODE, "x"], **OPTIONS)
    next(streams[0])
    streams[1].cancel()
    reasons = [stream.finish().finish_reason for stream in streams]
    assert reasons == ["length", "cancelled", "length"]
    running = device.pipeline.stream(CODE, max_new_tokens=500, ignore_eos=True)
    next(running)
    running.cancel()
    load = device.pipeline.backend.load
    assert (load.waiting, load.running, load.cache_used) == (0, 0, 0)


def test_a_device_that_fails_from_the_beginning_is_replaced(opened, monkeypatch, tmp_path):
    """Also while it warms up, and while its passes are measured."""
    monkeypatch.setattr("outrider.pipelines.model.profile.user_cache_path", lambda *args, **options: tmp_path)
    for first in ("warm_up", "answer"):
        device = opened(fallback="CPU", exact=False)
        device.fail_after(0)
        if first == "warm_up":
            device.pipeline.warm_up()
        assert len(device.answer(RENAME)[1]) == 30
        assert device.pipeline.has_fallen_back


def test_if_the_cpu_cannot_be_loaded_either_the_devices_failure_is_said(embedded_pair, monkeypatch, caplog):
    device = with_genai(embedded_pair, fallback="CPU")
    monkeypatch.setattr(Spare, "__call__", lambda spare: 1 / 0)
    device.fail_after(2)
    streams = device.pipeline.streams([RENAME, CODE], **OPTIONS)
    for stream in streams:
        with pytest.raises(DeviceFailed, match=FAILURE):
            stream.finish()
        assert stream.ended
    assert caplog.text.count("The CPU cannot take over") == 1
    device.fail_after(None)
    assert len(device.answer(RENAME)[1]) == 30


def test_an_answer_that_finds_no_memory_is_refused_alone(embedded_pair):
    elsewhere = Elsewhere(embedded_pair, "GPU")
    pipeline = elsewhere.open(fallback="CPU")
    elsewhere.faulty.fails_after, elsewhere.faulty.error = 2, None
    with pytest.raises(DeviceFailed, match="memory is full"):
        pipeline.generate(RENAME, **OPTIONS)
    assert not pipeline.has_fallen_back


def test_an_answer_goes_on_where_somebody_else_ran_the_pass_that_failed(embedded_pair):
    """So does a caller that waits for the whole cache."""
    device = on_gpu(embedded_pair, fallback="CPU")
    expected = device.pipeline.generate(RENAME, **OPTIONS).generations[0].token_ids[:1]
    stream = device.pipeline.stream(RENAME, **OPTIONS)
    next(stream)
    device.fail_after(0)
    device.pipeline.speculation.forget_prompts()
    stream.take()
    answer = stream.finish()
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 30)
    assert answer.token_ids[:1] == expected
    load = device.pipeline.backend.load
    assert (load.waiting, load.running, load.cache_used) == (0, 0, 0)


def test_a_device_that_has_failed_is_not_measured_again(embedded_pair, monkeypatch, tmp_path):
    monkeypatch.setattr("outrider.pipelines.model.profile.user_cache_path", lambda *args, **options: tmp_path)
    device = on_gpu(embedded_pair, fallback="CPU")
    there = device.pipeline.speculation
    device.fail_after(0)
    device.answer(RENAME)
    assert device.pipeline.has_fallen_back
    monkeypatch.setattr(there, "measure", lambda: pytest.fail("the device is asked"))
    monkeypatch.setattr(there, "prepare", lambda: pytest.fail("the device is asked"))
    assert len(device.answer(RENAME)[1]) == 30
    device.pipeline.warm_up()


@pytest.mark.parametrize("exact", [True, False])
def test_exactness_is_that_of_the_cpu_once_it_has_taken_over(embedded_pair, exact):
    device = with_genai(embedded_pair, fallback="CPU", exact=exact)
    assert not device.pipeline.exact
    device.fail_after(2)
    device.answer(RENAME)
    assert device.pipeline.exact == exact


def test_the_cpu_drafts_and_takes_every_option_once_it_has_taken_over(embedded_pair):
    """Also where nothing was drafted on the device, as GenAI cannot do what the options ask for."""
    device = with_genai(embedded_pair, fallback="CPU")
    assert (device.pipeline.modes, device.pipeline.plans) == (("off",), False)
    device.fail_after(2)
    device.answer(RENAME)
    alone = LLMPipeline(embedded_pair)
    assert device.pipeline.modes == alone.modes
    assert device.pipeline.plans
    options = {**OPTIONS, "num_assistant_tokens": 4, "logprobs": 1}
    answer = device.pipeline.generate(CODE, mode="suffix", **options).generations[0]
    assert answer.stats.drafted_by["suffix"]
    assert len(answer.logprobs) == len(answer.token_ids)


def test_the_cpu_has_room_for_texts_that_the_npu_had_not(npu_pair):
    device = on_npu(npu_pair, fallback="CPU")
    there = device.pipeline.longest_text
    device.fail_after(0)
    device.answer(RENAME)
    assert device.pipeline.longest_text > 2 * there
    tokens, written = device.answer("x = 1\n" * (there // 2))
    assert len(tokens) > there
    assert len(written) == 30


def test_the_cpu_takes_over_though_the_program_works_in_another_folder_by_now(embedded_pair, tmp_path, monkeypatch):
    monkeypatch.chdir(embedded_pair.parent)
    device = with_genai(Path(embedded_pair.name), fallback="CPU")
    monkeypatch.chdir(tmp_path)
    device.fail_after(2)
    assert len(device.answer(RENAME)[1]) == 30


def test_the_cpu_has_the_cache_and_the_reference_that_were_asked_for(embedded_pair, tmp_path):
    options = {"max_new_tokens": 40, "apply_chat_template": False}
    quoted = str(LLMPipeline(embedded_pair, exact=False).generate("def area(width, height):\n", mode="off", **options))
    (tmp_path / "quoted.py").write_text(quoted)
    with gpu_present():
        pipeline = LLMPipeline(
            embedded_pair, "GPU", engine="outrider", cache_tokens=512, reference=tmp_path, fallback="CPU", exact=False
        )
    device = with_own_engine(pipeline)
    device.fail_after(0)
    device.answer(CODE)
    assert pipeline.has_fallen_back
    answer = pipeline.generate("def area(width, height):\n", mode="suffix", num_assistant_tokens=4, **options)
    assert "reference" in answer.stats[0].drafted_by
    with pytest.raises(CacheTooSmall, match="the cache holds 512"):
        pipeline.generate(CODE, max_new_tokens=600)


@pytest.mark.parametrize("device", ["a GPU", "an NPU"])
def test_memory_is_free_when_nobody_uses_the_pipeline_any_more(embedded_pair, npu_pair, device):
    opened = OPENED[device](npu_pair if device == "an NPU" else embedded_pair, fallback="CPU").pipeline
    opened.warm_up()
    targets = [weakref.ref(opened.speculation._target), weakref.ref(opened.speculation._drafting[0].model)]
    gc.collect()
    gc.disable()
    try:
        del opened
        assert [target() for target in targets] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_engine_of_a_failed_device_is_let_go_once_nothing_is_left_with_it(embedded_pair, is_cancelled):
    device = with_genai(embedded_pair, fallback="CPU")
    fallback = device.pipeline.backend
    engine = weakref.ref(fallback._serving[0])
    gc.collect()
    gc.disable()
    try:
        device.fail_after(2)
        first, waiting = device.pipeline.streams([RENAME, CODE], **OPTIONS)
        while not device.pipeline.has_fallen_back:
            next(first)
        assert engine() is not None  # the other answer has not been tried there yet
        if is_cancelled:
            waiting.cancel()
        assert waiting.finish().finish_reason == ("cancelled" if is_cancelled else "length")
        assert first.finish().finish_reason == "length"
        assert engine() is None
    finally:
        gc.enable()
    there = 2 if is_cancelled else 4
    assert fallback.load.passes == there + fallback._serving[0].load.passes


@pytest.mark.parametrize("device", ["a GPU", "an NPU"])
def test_the_memory_of_a_failed_device_is_free_once_the_cpu_has_taken_over(embedded_pair, npu_pair, device):
    failing = OPENED[device](npu_pair if device == "an NPU" else embedded_pair, fallback="CPU")
    there = failing.pipeline.speculation
    models = [weakref.ref(there._target), weakref.ref(there._drafting[0].model)]
    del there
    gc.collect()
    gc.disable()
    try:
        failing.fail_after(2)
        failing.answer(RENAME)
        assert [model() for model in models] == [None, None]
    finally:
        gc.enable()


def test_an_answer_without_a_limit_has_room_on_the_cpu_as_well(embedded_pair, monkeypatch):
    monkeypatch.setattr("outrider.pipelines.pipeline.CACHE_TOKENS", 256)
    monkeypatch.setattr("outrider.pipelines.speculation.loaded_target.CACHE_TOKENS", 256)
    device = with_genai(embedded_pair, fallback="CPU")
    device.fail_after(3)
    answer = device.pipeline.generate(RENAME, ignore_eos=True).generations[0]
    assert answer.finish_reason == "length"
    assert answer.stats.prompt_tokens + answer.stats.new_tokens == 256


def test_what_is_not_the_devices_fault_stays_an_error(npu_pair, monkeypatch):
    device = on_npu(npu_pair, fallback="CPU")
    target = device.pipeline.speculation._target
    monkeypatch.setattr(target, "forward", lambda windows: [float("nan") * row for row in _rows(target, windows)])
    with pytest.raises(BrokenLogits):
        device.answer(RENAME)
    assert not device.pipeline.has_fallen_back


def _rows(target: Any, windows: Any) -> Iterator[Any]:
    for window in windows:
        yield type(target).forward(target, [window])[0]


@pytest.mark.parametrize(("device", "fallback"), [("CPU", "CPU"), ("NPU", "GPU"), ("NPU", "NPU")])
def test_no_other_fallback_is_possible(npu_pair, device, fallback):
    with pytest.raises(InvalidOption, match=rf"fallback='{fallback}' is not possible: give 'CPU' on another device"):
        LLMPipeline(npu_pair, device, fallback=fallback, **(STAND_IN if device == "NPU" else {}))
