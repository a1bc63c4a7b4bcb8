"""Drafting on an NPU: all of OpenVINO's code for it is real, except that its parts compute on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai
import pytest

from outrider.pipelines import (
    CacheTooSmall,
    InvalidOption,
    LLMPipeline,
    PromptTooLong,
    StructuredOutputConfig,
    UnsupportedDevice,
)
from outrider.pipelines.devices import devices
from outrider.pipelines.devices.npu_model import NpuModel
from outrider.pipelines.model.processor import limited_properties
from outrider.pipelines.model.target import Rows, Window
from outrider.pipelines.speculation import loaded_target
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft_cost import DraftCost
from tests.on_npu import STAND_IN, OnCpu

pytestmark = pytest.mark.slow

MODES = ("off", "lookup", "suffix", "recycling", "draft", "chained", "auto")
CODE = "def area(width, height):\n    return width * height\n"
RENAME = f"Rename `width` to `breadth`.\n\n{CODE}"
ROUNDING = 0.4  # of logits, between devices
SHORT: dict[str, Any] = {**STAND_IN, "MAX_PROMPT_LEN": 256}  # OpenVINO computes as many rows for every prompt
SHORTEST: dict[str, Any] = {**STAND_IN, "MAX_PROMPT_LEN": 64, "MIN_RESPONSE_LEN": 64}


@pytest.fixture(scope="module")
def pipeline(npu_pair: Path) -> LLMPipeline:
    pipeline = LLMPipeline(npu_pair, "NPU", **SHORT)
    pipeline.warm_up()
    return pipeline


@pytest.fixture(scope="module")
def roomy(npu_pair: Path) -> LLMPipeline:
    """With room for a prompt of the usual length."""
    return LLMPipeline(npu_pair, "NPU", **STAND_IN)


@pytest.fixture(scope="module")
def long(npu_pair: Path) -> LLMPipeline:
    """With room for more than that."""
    return LLMPipeline(npu_pair, "NPU", MAX_PROMPT_LEN=2048, **STAND_IN)


@pytest.fixture(scope="module")
def small(npu_pair: Path) -> LLMPipeline:
    """With room for 64 tokens of a prompt and 64 of an answer."""
    return LLMPipeline(npu_pair, "NPU", **SHORTEST)


@pytest.fixture(scope="module")
def reference(npu_pair: Path) -> OnCpu:
    return OnCpu(npu_pair)


@pytest.fixture(autouse=True)
def nothing_is_left(pipeline: LLMPipeline) -> Iterator[None]:
    yield
    load = pipeline.backend.load
    assert (load.waiting, load.running, load.cache_used) == (0, 0, 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prompt", [RENAME, CODE * 3, "x"])
def test_greedy_tokens_are_the_likeliest_by_the_cpu(pipeline, reference, prompt, mode):
    tokens = pipeline.tokenizer.encode(prompt, False)
    answer = pipeline.generate([tokens], max_new_tokens=32, ignore_eos=True, mode=mode).generations[0]
    assert len(answer.token_ids) == 32
    assert reference.shortfall(tokens, answer.token_ids) < ROUNDING


@pytest.mark.parametrize("mode", ["lookup", "suffix", "draft", "chained", "auto"])
def test_drafts_save_passes(pipeline, monkeypatch, mode):
    """Where a token of the draft model costs little compared with a pass."""
    cheap = CostModel((1, 8), (20.0, 20.0), (0.0, 0.0), {"draft_model": DraftCost(1.0)})
    monkeypatch.setattr(pipeline.speculation._planner, "cost", cheap)
    answer = pipeline.generate(RENAME, max_new_tokens=48, ignore_eos=True, mode=mode).generations[0]
    assert answer.stats.passes <= 24


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_ends_at_any_token_that_is_to_end_it(pipeline, mode):
    whole = pipeline.generate(RENAME, max_new_tokens=16, ignore_eos=True, mode="off").generations[0].token_ids
    for token in set(whole):
        answer = pipeline.generate(RENAME, max_new_tokens=16, stop_token_ids={token}, mode=mode).generations[0]
        assert answer.token_ids == whole[: whole.index(token) + 1]


def test_genais_drafting_is_not_used_because_its_answers_run_past_their_ends(npu_pair, pipeline):
    """If this fails, OpenVINO GenAI has mended it."""
    draft = openvino_genai.draft_model(npu_pair / "draft", "CPU", **limited_properties())
    theirs = openvino_genai.LLMPipeline(npu_pair / "target", "NPU", draft_model=draft, **SHORT)
    prompt = openvino_genai.Tokenizer(npu_pair / "target").encode(CODE * 3, add_special_tokens=False).input_ids
    whole = pipeline.generate([prompt.data[0].tolist()], max_new_tokens=24, ignore_eos=True).generations[0].token_ids
    ran_past = 0
    for token in set(whole):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.num_assistant_tokens, config.stop_token_ids = 24, 3, {token}
        config.set_eos_token_id(token)
        ran_past += len(theirs.generate(prompt, config).tokens[0]) > whole.index(token) + 1
    assert ran_past


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_text_in_a_mode(pipeline, mode):
    first, second, other = (
        pipeline.generate(RENAME, max_new_tokens=30, mode=mode, do_sample=True, temperature=3.0, rng_seed=seed)
        for seed in (11, 11, 12)
    )
    assert first == second != other


@pytest.mark.parametrize("end", ["cancelled", "dropped", "failed"])
@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_is_given_up_makes_room_for_the_next(pipeline, monkeypatch, mode, end):
    whole = pipeline.generate(RENAME, max_new_tokens=30, mode=mode)
    stream = pipeline.stream(RENAME, max_new_tokens=30, mode=mode)
    next(stream)
    if end == "failed":
        target = pipeline.speculation.engine._target
        with monkeypatch.context() as patch:
            patch.setattr(target, "_request", None)
            with pytest.raises(AttributeError):
                stream.finish()
    elif end == "cancelled":
        stream.cancel()
    del stream
    assert pipeline.generate(RENAME, max_new_tokens=30, mode=mode) == whole


def test_requests_at_once_get_the_texts_that_each_gets_alone(pipeline):
    asked = [(prompt, mode) for prompt in (RENAME, CODE) for mode in ("off", "lookup", "auto")]
    alone = [pipeline.generate(prompt, max_new_tokens=12, mode=mode) for prompt, mode in asked]
    with ThreadPoolExecutor(6) as threads:
        together = threads.map(lambda each: pipeline.generate(each[0], max_new_tokens=12, mode=each[1]), asked)
        assert list(together) == alone
    assert pipeline.generate([RENAME, CODE], max_new_tokens=12, mode="off").texts == [alone[0], alone[3]]


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_a_chat_answers_as_if_all_of_it_were_asked_at_once(pipeline, mode):
    pipeline.start_chat()
    try:
        answers = [pipeline.generate(text, max_new_tokens=20, mode=mode) for text in (RENAME, "Explain it.")]
    finally:
        pipeline.finish_chat()
    messages = [
        {"role": "user", "content": RENAME},
        {"role": "assistant", "content": answers[0]},
        {"role": "user", "content": "Explain it."},
    ]
    assert pipeline.generate(messages, max_new_tokens=20, mode=mode).texts == [answers[1]]


@pytest.mark.parametrize("mode", ["off", "lookup", "auto"])
def test_an_answer_fills_the_window_to_its_last_slot(small, pipeline, mode):
    tokens = pipeline.tokenizer.encode(CODE, False)
    room = 128 - len(tokens)
    answer = small.generate([tokens], ignore_eos=True, mode=mode).generations[0]
    assert (len(answer.token_ids), answer.finish_reason) == (room, "length")
    roomy = pipeline.generate([tokens], max_new_tokens=room, ignore_eos=True, mode=mode).generations[0]
    assert answer.token_ids == roomy.token_ids


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_a_prompt_is_read_whole_however_long(roomy, reference, mode):
    tokens = (roomy.tokenizer.encode(CODE, False) * 99)[:700]
    answer = roomy.generate([tokens], max_new_tokens=6, ignore_eos=True, mode=mode).generations[0]
    assert reference.shortfall(tokens, answer.token_ids) < ROUNDING
    assert answer.stats.passes <= 6


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_a_prompt_may_be_longer_than_usual_where_that_is_asked_for(roomy, long, reference, mode):
    tokens = (roomy.tokenizer.encode(CODE, False) * 99)[:1500]
    with pytest.raises(PromptTooLong, match=r"prepared for 1024: .*MAX_PROMPT_LEN"):
        roomy.generate([tokens], max_new_tokens=6)
    answer = long.generate([tokens], max_new_tokens=6, ignore_eos=True, mode=mode).generations[0]
    assert len(answer.token_ids) == 6
    assert reference.shortfall(tokens, answer.token_ids) < ROUNDING


@pytest.mark.parametrize("rows", [2, 8, 12])
def test_the_window_has_room_for_as_many_rows_as_openvino_makes_of_them(npu_pair, pipeline, rows):
    """At the last slot a pass with drafts still writes all of its rows."""
    response = 64 - rows  # the rest of what OpenVINO rounds up to, by the number that was asked for
    properties = {"NPUW_LLM_MAX_GENERATION_TOKEN_LEN": rows, "MAX_PROMPT_LEN": 64, "MIN_RESPONSE_LEN": response}
    narrow = LLMPipeline(npu_pair, "NPU", **properties, **STAND_IN)
    assert narrow.speculation.compilation.rows.most == -(-rows // 8) * 8
    tokens = (pipeline.tokenizer.encode(CODE, False) * 9)[:64]
    roomy = pipeline.generate([tokens], max_new_tokens=response, ignore_eos=True, mode="off").generations[0]
    for mode in ("off", "lookup"):
        answer = narrow.generate([tokens], ignore_eos=True, mode=mode, num_assistant_tokens=11).generations[0]
        assert (len(answer.token_ids), answer.finish_reason) == (response, "length")
        assert answer.token_ids == roomy.token_ids


def test_a_prompt_of_one_token_begins_another_sequence_or_is_refused(npu_pair, pipeline, reference):
    for rows in (1, 2, 8):
        model = NpuModel(npu_pair / "target", {**SHORTEST, "NPUW_LLM_MAX_GENERATION_TOKEN_LEN": rows})
        model.forward([Window([5, 6, 7], 0, [0])])
        if rows == 1:
            with pytest.raises(InvalidOption, match=r"one token cannot be read with .*=1: give a longer one.*_LEN=8"):
                model.forward([Window([300], 0, [0])])
            (logits,) = model.forward([Window([8], 3, [0])])
            expected = reference.logits([5, 6, 7, 8])[-1]
        else:
            (logits,) = model.forward([Window([300], 0, [0])])
            assert np.abs(logits[-1] - reference.logits([300])[-1]).max() < ROUNDING
            (logits,) = model.forward([Window([301], 1, [0])])
            expected = reference.logits([300, 301])[-1]
        assert np.abs(logits[-1] - expected).max() < ROUNDING


class Fake(NpuModel):
    """Its logits are those of the text before each row, unless it `breaks` in some way."""

    def __init__(self, breaks: str | None) -> None:
        self.vocabulary_size, self.num_tokens, self.num_prompt_tokens = 50, 200, 100
        self.rows = Rows(most=8, whole_prompt=100)
        self._breaks = breaks
        self._text: list[int] = []

    def forward(self, windows: Sequence[Window]) -> list[np.ndarray]:
        (window,) = windows
        kept = self._text[: window.start + (self._breaks == "rejected tokens")]
        self._text = [*kept, *window.tokens][: window.start + len(window.tokens)]
        rows = np.zeros((len(window.tokens), 50), np.float32)
        for i in range(len(rows)):
            rows[i] = hash((*self._text[: window.start + i + 1],)) % 997
        if (self._breaks, len(rows)) in (("seven rows", 7), ("a single row", 1)):
            rows += 1e-3
        if self._breaks == "later rows":
            rows[4:] += 1e-3
        return [rows[len(rows) - window.num_rows :]]


@pytest.mark.parametrize("breaks", [None, "rejected tokens", "seven rows", "a single row", "later rows"])
def test_the_check_of_exactness_finds_what_depends_on_the_cut(breaks):
    assert Fake(breaks).is_exact() == (breaks is None)


def test_exactness_is_what_the_check_finds_and_is_remembered(npu_pair, monkeypatch, tmp_path):
    monkeypatch.setattr("outrider.pipelines.model.profile.user_cache_path", lambda *args, **options: tmp_path)
    for found in (True, False):
        monkeypatch.setattr(NpuModel, "is_exact", lambda model, found=found: found)
        for exact, expected in ((None, True), (False, False)):
            assert LLMPipeline(npu_pair, "NPU", exact=exact, **SHORTEST).exact == expected


def test_a_device_that_fails_while_exactness_is_tried_is_refused_with_what_to_do(npu_pair, monkeypatch, tmp_path):
    monkeypatch.setattr("outrider.pipelines.model.profile.user_cache_path", lambda *args, **options: tmp_path)

    def is_exact(model: NpuModel) -> bool:
        with devices.failing("NPU"):
            raise RuntimeError("Exception from src/plugin.cpp:7:\nThe device was unplugged.\n")

    monkeypatch.setattr(NpuModel, "is_exact", is_exact)
    with pytest.raises(UnsupportedDevice, match=r"NPU failed .*\(The device was unplugged\): update .*exact=False"):
        LLMPipeline(npu_pair, "NPU", **SHORTEST)
    assert not LLMPipeline(npu_pair, "NPU", exact=False, **SHORTEST).exact


def test_passes_behind_any_context_can_be_timed_in_any_order(small):
    target = small.speculation._target
    for rows, context in ((1, 50), (8, 50), (2, 20), (8, 60), (1, 0), (3, 90)):
        target.blind_pass(rows, context, [0])
        assert target._num_cached == context + rows
    target.blind_pass(60, 1000, [0])
    assert target._num_cached == 128


def test_rejected_tokens_of_several_passes_are_taken_back(small, reference):
    """OpenVINO alone would still attend to those before the last pass."""
    target, text = small.speculation._target, [5, 6, 7, 8, 9, 10, 11, 12, 13]
    target.forward([Window(text[:4], 0, [0])])
    for start in range(4, 9):
        target.forward([Window(text[start : start + 1], start, [0])])
    (logits,) = target.forward([Window([300, 301], 5, [0], 2)])
    assert np.abs(logits - reference.logits([*text[:5], 300, 301])[-2:]).max() < 0.05
    (logits,) = target.forward([Window([302], 7, [0])])
    assert np.abs(logits[0] - reference.logits([*text[:5], 300, 301, 302])[-1]).max() < 0.05
    target.forward([Window(text, 0, [0])])
    (logits,) = target.forward([Window([300, 301], 5, [0], 2)])
    assert np.abs(logits - reference.logits([*text[:5], 300, 301])[-2:]).max() < 0.05, "those of a prompt, too"
    target.forward([Window([302], 7, [0])])
    with pytest.raises(ValueError, match=r"The tokens 9 to 10 cannot be read: 8 are cached, and .* room for 128"):
        target.forward([Window([9], 9, [0])])


@pytest.mark.parametrize(("length", "num_rows"), [(64, 1), (30, 20), (90, 3), (90, 80), (90, 90)])
def test_a_window_longer_than_a_pass_is_read_in_several(small, reference, length, num_rows):
    target, text = small.speculation._target, [7 * i % 500 for i in range(length)]
    expected = reference.logits(text)
    (logits,) = target.forward([Window(text, 0, [0], num_rows)])
    assert np.abs(logits - expected[-num_rows:]).max() < 0.05
    target.forward([Window(text[:10], 0, [0])])
    num_rows = min(num_rows, length - 10)
    (logits,) = target.forward([Window(text[10:], 10, [0], num_rows)])
    assert np.abs(logits - expected[-num_rows:]).max() < 0.05


@pytest.mark.parametrize(("prompt", "response"), [(32, 512), (2, 64)])
def test_a_pipeline_with_little_room_for_prompts_warms_up(npu_pair, prompt, response):
    LLMPipeline(npu_pair, "NPU", MAX_PROMPT_LEN=prompt, MIN_RESPONSE_LEN=response, **STAND_IN).warm_up()


def test_what_has_no_room_is_refused_with_what_to_do(small):
    with pytest.raises(PromptTooLong, match=r"prepared for 64: .*a larger MAX_PROMPT_LEN or MIN_RESPONSE_LEN"):
        small.generate(CODE * 9, max_new_tokens=1)
    with pytest.raises(CacheTooSmall, match=r"cache holds 128: lower max_new_tokens"):
        small.generate("x", max_new_tokens=128)
    prompt = small.tokenizer.encode(CODE * 9, False)[:64]
    assert small.generate([prompt], max_new_tokens=64, ignore_eos=True).stats[0].new_tokens == 64


def test_other_numbers_of_rows_give_the_same_text(npu_pair, pipeline):
    plain = pipeline.generate(RENAME, max_new_tokens=40, mode="off")
    for rows in (1, 16):
        other = LLMPipeline(npu_pair, "NPU", NPUW_LLM_MAX_GENERATION_TOKEN_LEN=rows, **SHORT)
        for mode in ("off", "lookup", "auto"):
            assert other.generate(RENAME, max_new_tokens=40, mode=mode) == plain


def test_log_probabilities_structure_and_biases_are_those_of_the_engine(pipeline):
    answer = pipeline.generate(RENAME, max_new_tokens=8, logprobs=2).generations[0]
    assert len(answer.logprobs) == 8 == len(answer.token_ids)
    form = StructuredOutputConfig(regex="(yes|no), [a-c]{3}")
    written = {
        mode: pipeline.generate("Is it?", max_new_tokens=30, structured_output_config=form, mode=mode) for mode in MODES
    }
    assert set(written.values()) <= {
        f"{a}, {b}{c}{d}" for a in ("yes", "no") for b in "abc" for c in "abc" for d in "abc"
    }
    assert pipeline.generate("x", max_new_tokens=3, logit_bias={300: 100.0}).generations[0].token_ids == (300,) * 3


def test_everything_is_drafted_and_a_promise_that_cannot_be_kept_is_said(pipeline, npu_pair, caplog, monkeypatch):
    assert (pipeline.modes, pipeline.device) == (MODES, "NPU")
    assert pipeline.speculation.cost.rows == (1, 8)
    monkeypatch.setattr(loaded_target, "kept", lambda path, kind: None)
    monkeypatch.setattr(NpuModel, "is_exact", lambda model: False)
    with caplog.at_level(logging.WARNING):
        LLMPipeline(npu_pair, "NPU", exact=True, **SHORTEST)
    assert "another text in another mode" in caplog.text
