"""What a pipeline does on devices other than the CPU; see `elsewhere` for what stands in for them."""

from __future__ import annotations

import gc
import json
import logging
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import pairwise

import openvino_genai
import pytest

from outrider.pipelines import (
    MODES,
    DeviceFailed,
    GenerationConfig,
    InvalidOption,
    LLMPipeline,
    StructuredOutputConfig,
    UnsupportedDevice,
    UnsupportedModel,
)
from outrider.pipelines.devices.genai_config import to_genai
from outrider.pipelines.devices.genai_engine import _Writer
from outrider.pipelines.engine.request import Request
from outrider.pipelines.text.tokenizer import TextStream

from .elsewhere import Elsewhere

pytestmark = pytest.mark.slow

CODE = "def area(width, height):\n    return width * height\n"
RENAME = f"Rename `width` to `breadth`.\n\n{CODE}"
SAMPLED = {"do_sample": True, "temperature": 1.3, "rng_seed": 11}
OF_OUR_OWN = {  # done outside GenAI, or by its other options
    "max_length", "stop_strings", "include_stop_str_in_output", "eos_token_ids", "apply_chat_template",
    "num_return_sequences",
}  # fmt: skip
OF_DRAFTING = {  # see test_genai_speculation
    "mode", "num_assistant_tokens", "max_ngram_size", "acceptance", "typical_epsilon", "typical_delta",
    "rollback_threshold",
}  # fmt: skip
REFUSED = {"logprobs", "logit_bias", "structured_output_config", "presence_penalty", "frequency_penalty"}


@pytest.fixture(scope="module")
def elsewhere(embedded_pair) -> Elsewhere:
    return Elsewhere(embedded_pair, "GPU")


@pytest.fixture(scope="module")
def pipeline(elsewhere: Elsewhere) -> LLMPipeline:
    return elsewhere.open()


@pytest.fixture(scope="module")
def reference(elsewhere: Elsewhere):
    return elsewhere.reference()


def written_by(reference, prompt: str, **options: object) -> str:
    config = openvino_genai.GenerationConfig()
    config.update_generation_config(**{"max_new_tokens": 48, **options})
    return reference.generate([prompt], config).texts[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"apply_chat_template": False},
        {"max_new_tokens": 7},
        {"ignore_eos": True},
        {"min_new_tokens": 30},
        {"repetition_penalty": 1.3},
        SAMPLED,
        {**SAMPLED, "rng_seed": 12},
        {**SAMPLED, "top_k": 5},
        {**SAMPLED, "top_p": 0.6},
        {**SAMPLED, "min_p": 0.2},
        {**SAMPLED, "temperature": 0.4, "apply_chat_template": False},
        {"stop_token_ids": {301}},
    ],
    ids=str,
)
def test_the_text_is_that_of_genai_with_the_same_options(pipeline: LLMPipeline, reference, options):
    prompts = [RENAME, "Write a function.", CODE * 12]
    ours = [pipeline.generate(prompt, **{"max_new_tokens": 48, **options}) for prompt in prompts]
    assert ours == [written_by(reference, prompt, **options) for prompt in prompts]


def test_the_options_that_were_compared_make_a_difference(pipeline: LLMPipeline):
    """Or the comparison would say nothing."""
    plain = {"apply_chat_template": False, "max_new_tokens": 40}
    options = [
        {}, {"repetition_penalty": 1.3}, SAMPLED,
        {**SAMPLED, "rng_seed": 12}, {**SAMPLED, "top_k": 2}, {**SAMPLED, "top_p": 0.3}, {**SAMPLED, "min_p": 0.5},
        {**SAMPLED, "temperature": 2.0},
    ]  # fmt: skip
    texts = [pipeline.generate("x = ", **plain, **chosen) for chosen in options]
    assert len(set(texts)) == len(options)


def test_an_end_beyond_the_vocabulary_that_a_model_names_is_no_end(pipeline: LLMPipeline):
    """GenAI alone would write beyond the logits, which ends the process or spoils its memory."""
    config = GenerationConfig(eos_token_ids={7, 10**8}, min_new_tokens=2, max_new_tokens=9)
    text = TextStream(pipeline.tokenizer)
    theirs = pipeline.backend._config_of(Request([3, 4], config, 9, text, 0, None, 0))
    assert (theirs.stop_token_ids, theirs.eos_token_id, theirs.min_new_tokens) == ({7}, 7, 2)
    config = GenerationConfig(eos_token_ids={10**8}, min_new_tokens=2, max_new_tokens=9)
    theirs = pipeline.backend._config_of(Request([3, 4], config, 9, text, 0, None, 0))
    assert (theirs.ignore_eos, theirs.min_new_tokens) == (True, 0)


def test_a_stream_that_is_collected_in_the_thread_that_writes_holds_nobody_up(pipeline: LLMPipeline, monkeypatch):
    write, collected = _Writer.write, []

    def write_and_collect(self, tokens):
        if not collected:
            collected.append(gc.collect())
        return write(self, tokens)

    def leave_a_stream_in_a_cycle() -> None:
        stream = pipeline.stream(RENAME, max_new_tokens=40)
        cycle = [stream]
        cycle.append(cycle)

    monkeypatch.setattr(_Writer, "write", write_and_collect)
    gc.disable()
    try:
        leave_a_stream_in_a_cycle()
        assert pipeline.generate("x = ", max_new_tokens=8, apply_chat_template=False)
        assert collected
    finally:
        gc.enable()
    assert pipeline.backend.load.waiting == pipeline.backend.load.running == 0


def test_every_option_is_dealt_with():
    chosen = GenerationConfig(
        min_new_tokens=2, stop_token_ids={4}, do_sample=True, temperature=0.5, top_k=9, top_p=0.8, min_p=0.1,
        repetition_penalty=1.1, rng_seed=3, ignore_eos=True,
    )  # fmt: skip
    theirs, default = to_genai(chosen, max_new_tokens=17), openvino_genai.GenerationConfig()
    passed_on = {field.name for field in fields(chosen)} - OF_OUR_OWN - OF_DRAFTING - REFUSED
    passed_on -= {"ignore_eos", "max_new_tokens"}
    for name in passed_on:
        value = getattr(chosen, name)
        assert getattr(theirs, name) == (pytest.approx(value) if isinstance(value, float) else value), name
        assert getattr(theirs, name) != getattr(default, name), name
    assert theirs.max_new_tokens == 17
    assert not to_genai(GenerationConfig(do_sample=True, temperature=0.0), 5).do_sample


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acceptance": "typical"}, "acceptance='typical' .*engine='outrider'"),
        ({"rng_seed": 2**32}, "rng_seed=4294967296 .*below 4294967296"),
        ({"presence_penalty": 0.5}, "presence_penalty=0.5 .*adds it to the scores .*engine='outrider'"),
        ({"frequency_penalty": -1}, "frequency_penalty=-1 .*adds it to the scores .*engine='outrider'"),
        ({"do_sample": True, "temperature": 1e-300}, "temperature must be .*less extreme values, .*engine='outrider'"),
        ({"do_sample": True, "top_p": 1e-50}, "top_p must be .*less extreme values"),
        ({"do_sample": True, "top_k": 2**63}, "cast Python instance .*less extreme values"),
    ],
)
def test_what_genai_cannot_do_is_refused(pipeline: LLMPipeline, options, message):
    with pytest.raises(InvalidOption, match=message):
        pipeline.generate(RENAME, **options)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_a_model_whose_own_options_genai_cannot_follow_is_refused_when_it_is_loaded(embedded_pair, tmp_path, name):
    pair = shutil.copytree(embedded_pair, tmp_path / "pair")
    stored = pair / "target" / "generation_config.json"
    own = json.loads(stored.read_text(encoding="utf-8"))
    stored.write_text(json.dumps({**own, name: 0.0}), encoding="utf-8")
    assert Elsewhere(pair, "GPU").open().generate(RENAME, max_new_tokens=2)
    stored.write_text(json.dumps({**own, name: 1.5}), encoding="utf-8")
    with pytest.raises(UnsupportedModel, match=rf"generation_config.json has {name}=1.5, .* with engine='outrider'"):
        Elsewhere(pair, "GPU").open()


def test_the_ends_of_an_answer_are_those_of_the_cpu(pipeline: LLMPipeline):
    whole = pipeline.generate(RENAME, max_new_tokens=48)
    assert whole.finish_reasons == ["stop"]
    assert whole.generations[0].token_ids[-1] == pipeline.tokenizer.eos_token_id
    assert pipeline.generate(RENAME, max_new_tokens=5).finish_reasons == ["length"]
    on = pipeline.generate(RENAME, max_new_tokens=48, ignore_eos=True)
    assert (on.finish_reasons, on.stats[0].new_tokens) == (["length"], 48)
    prompt_tokens = whole.stats[0].prompt_tokens
    assert pipeline.generate(RENAME, max_length=prompt_tokens + 3).stats[0].new_tokens == 3
    third = whole.generations[0].token_ids[2]
    at_third = pipeline.generate(RENAME, stop_token_ids={third}, max_new_tokens=48, ignore_eos=True).generations[0]
    assert (at_third.finish_reason, at_third.token_ids) == ("stop", whole.generations[0].token_ids[:3])
    long = pipeline.generate(RENAME, min_new_tokens=40, max_new_tokens=40).generations[0]
    assert (long.finish_reason, long.stats.new_tokens) == ("length", 40)
    assert pipeline.tokenizer.eos_token_id not in long.token_ids


def test_stop_strings_end_the_text_before_them(pipeline: LLMPipeline):
    whole = str(pipeline.generate(RENAME, max_new_tokens=40))
    for start in range(3, len(whole) - 3, 5):
        stop = whole[start : start + 3]
        expected = whole[: whole.index(stop)]
        options = {"max_new_tokens": 40, "stop_strings": {stop, "never"}}
        assert pipeline.generate(RENAME, **options) == expected
        assert pipeline.generate(RENAME, include_stop_str_in_output=True, **options) == expected + stop
        assert pipeline.generate(RENAME, **options).finish_reasons == ["stop"]


def test_pieces_add_up_to_the_answer(pipeline: LLMPipeline):
    whole = pipeline.generate(RENAME, max_new_tokens=30).generations[0]
    pieces = list(pipeline.stream(RENAME, max_new_tokens=30))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert sum((piece.token_ids for piece in pieces), ()) == whole.token_ids
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [whole.finish_reason]
    assert {source for piece in pieces for source in piece.sources} == {"target"}
    assert len(pieces) > 5


def test_the_figures_are_true(pipeline: LLMPipeline):
    stream = pipeline.stream(RENAME, max_new_tokens=9)
    stats = stream.finish().stats
    prompt = pipeline.tokenizer.apply_chat_template([{"role": "user", "content": RENAME}])
    assert stats.prompt_tokens == len(pipeline.tokenizer.encode(prompt, add_special_tokens=False))
    assert (stats.new_tokens, stats.passes, stats.drafted, stats.accepted) == (9, 9, 0, 0)
    assert 0 < stats.ttft_s < stats.total_s
    trace = stream._request.trace
    assert [record.num_rows for record in trace] == [stats.prompt_tokens] + [1] * 8
    assert stats.total_s == pytest.approx(trace[-1].ended - stream._request.submitted)
    assert all(record.began <= record.ended for record in trace)
    assert all(one.ended == other.began for one, other in pairwise(trace))


def test_several_prompts_are_answered_in_order_as_each_alone(pipeline: LLMPipeline):
    prompts = [RENAME, "Repeat this function.\n\n" + CODE, "x", CODE * 20]
    together = pipeline.generate(prompts, max_new_tokens=16)
    assert together.texts == [pipeline.generate(prompt, max_new_tokens=16) for prompt in prompts]


def test_several_answers_to_one_prompt_differ_and_repeat(pipeline: LLMPipeline):
    options = {**SAMPLED, "max_new_tokens": 24, "apply_chat_template": False}
    answers = pipeline.generate("x = ", num_return_sequences=3, **options)
    assert len(set(answers.texts)) == 3
    assert answers.texts == pipeline.generate("x = ", num_return_sequences=3, **options).texts
    assert answers.texts[0] == pipeline.generate("x = ", **options)


def test_threads_at_once_get_the_texts_that_each_gets_alone(pipeline: LLMPipeline):
    asked = [(f"{RENAME}# {n % 4}\n", {**SAMPLED, "rng_seed": n, "max_new_tokens": 12}) for n in range(12)]
    alone = [pipeline.generate(prompt, **options) for prompt, options in asked]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda one: pipeline.generate(one[0], **one[1]), asked))
        streamed = list(threads.map(lambda one: "".join(p.text for p in pipeline.stream(one[0], **one[1])), asked))
    assert together == alone
    assert streamed == alone


def test_streams_that_are_read_in_turns_get_their_own_answers(pipeline: LLMPipeline):
    prompts = [RENAME, CODE, "Write a function."]
    expected = [pipeline.generate(prompt, max_new_tokens=20) for prompt in prompts]
    texts, streams = [""] * 3, [pipeline.stream(prompt, max_new_tokens=20) for prompt in prompts]
    for _ in range(22):
        for n in (2, 0, 1):
            texts[n] += "".join(piece.text for piece in [next(streams[n], None)] if piece is not None)
    assert texts == expected


def test_a_chat_remembers_what_was_said(pipeline: LLMPipeline):
    pipeline.start_chat("Answer with code.")
    first = pipeline.generate(RENAME, max_new_tokens=16)
    second = pipeline.generate("Now remove it.", max_new_tokens=16)
    pipeline.finish_chat()
    messages = [
        {"role": "system", "content": "Answer with code."},
        {"role": "user", "content": RENAME},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "Now remove it."},
    ]
    assert pipeline.generate(messages[:2], max_new_tokens=16).texts == [first]
    assert pipeline.generate(messages, max_new_tokens=16).texts == [second]


@pytest.mark.parametrize("end", ["cancel", "close", "drop", "before the first token", "while another runs"])
def test_an_answer_that_is_given_up_makes_room_for_the_next(pipeline: LLMPipeline, end):
    whole = pipeline.generate(RENAME, max_new_tokens=30)
    other = pipeline.stream(RENAME, max_new_tokens=30)
    stream = pipeline.stream(CODE * 9, max_new_tokens=2000 if pipeline.device == "GPU" else 800, ignore_eos=True)
    if end == "while another runs":
        next(other)
        stream.cancel()
        assert [piece.finish_reason for piece in stream] == ["cancelled"]
        assert other.finish().finish_reason == "stop"
    else:
        other.close()
        if end != "before the first token":
            begun = [next(stream) for _ in range(3)]
            assert all(piece.finish_reason is None for piece in begun)
        if end == "cancel":
            stream.cancel()
            assert [piece.finish_reason for piece in stream] == ["cancelled"]
        elif end == "drop":
            del stream
        else:
            stream.close()
            assert list(stream) == []
    assert pipeline._engine._running is None
    assert not pipeline._engine._waiting
    assert pipeline.generate(RENAME, max_new_tokens=30) == whole


def test_a_stopped_answer_stops_the_device(pipeline: LLMPipeline):
    """Long before it would have come to its end."""
    stream = pipeline.stream(CODE, max_new_tokens=900, ignore_eos=True)
    next(stream)
    answer = pipeline._engine._running
    stream.cancel()
    answer.thread.join(timeout=60)
    assert not answer.thread.is_alive()
    assert answer._written.qsize() < 800


@pytest.mark.parametrize("streamed", [1, 4])
def test_a_failing_device_is_said_and_the_next_request_is_served(pipeline: LLMPipeline, elsewhere, streamed):
    whole = pipeline.generate(RENAME, max_new_tokens=30)
    faulty = elsewhere.faulty
    faulty.fails_after = streamed
    stream = pipeline.stream(RENAME, max_new_tokens=30)
    waiting = pipeline.stream(CODE, max_new_tokens=5)
    with pytest.raises(DeviceFailed, match=r"\(The device was unplugged\): ask again"):
        list(stream)
    assert list(stream) == []
    assert stream._request.num_new == streamed
    faulty.error, broken = None, faulty.error
    with pytest.raises(DeviceFailed, match=rf"after {streamed} of 5 tokens.*memory is full"):
        list(waiting)
    faulty.fails_after, faulty.error = None, broken
    assert pipeline.generate(RENAME, max_new_tokens=30) == whole


def test_a_pipeline_whose_device_failed_does_not_stay_in_memory(embedded_pair):
    """Otherwise there might be no room for another one."""
    elsewhere = Elsewhere(embedded_pair, "GPU")
    pipeline = elsewhere.open()
    elsewhere.faulty.fails_after = 1
    with pytest.raises(DeviceFailed):
        pipeline.generate(RENAME, max_new_tokens=30)
    held = weakref.ref(elsewhere.faulty)
    del pipeline, elsewhere
    gc.collect()
    assert held() is None


def test_an_error_in_a_streamer_reaches_the_caller_and_the_next_request_is_served(pipeline: LLMPipeline):
    with pytest.raises(ZeroDivisionError):
        pipeline.generate(RENAME, max_new_tokens=30, streamer=lambda text: 1 / 0)
    assert pipeline.generate("x", max_new_tokens=2).stats[0].new_tokens == 2


def test_nothing_is_promised_and_nothing_is_drafted_unless_asked_for(pipeline: LLMPipeline, caplog):
    with caplog.at_level(logging.WARNING):
        pipeline.warm_up()
    assert not caplog.records
    assert pipeline.exact is False
    assert pipeline.modes == ("off",)
    plain = pipeline.generate(RENAME, max_new_tokens=8, mode="off")
    assert pipeline.generate(RENAME, GenerationConfig(max_new_tokens=8)) == plain
    theirs = openvino_genai.GenerationConfig()
    theirs.max_new_tokens = 8
    assert pipeline.generate(RENAME, theirs) == plain
    with pytest.raises(UnsupportedDevice, match=f"GenAI decodes on {pipeline.device}"):
        _ = pipeline.speculation
    for mode in set(MODES) - {"off", "auto"}:
        remedy = f"speculation='{mode}'" if mode in ("lookup", "draft") else "engine='outrider', or with device='CPU'"
        with pytest.raises(InvalidOption, match=rf"mode='{mode}' .*on {pipeline.device}.*loaded for 'off'.*{remedy}"):
            pipeline.generate(RENAME, mode=mode)
    form = StructuredOutputConfig(regex="a+")
    for name, value in {"logprobs": 1, "logit_bias": {5: 1}, "structured_output_config": form}.items():
        with pytest.raises(InvalidOption, match=rf"{name}=.* on {pipeline.device}.*engine='outrider', .*'CPU'"):
            pipeline.generate(RENAME, **{name: value})
    for name, value in {"num_assistant_tokens": 5, "max_ngram_size": 4}.items():
        with pytest.raises(InvalidOption, match=rf"{name}={value} has no effect .*'off': .*speculation='lookup'"):
            pipeline.generate(RENAME, **{name: value})
