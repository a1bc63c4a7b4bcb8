"""What the pipeline does not take, and how little it needs for the rest."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import openvino_genai
import pytest

from outrider.pipelines import (
    CacheTooSmall,
    EmptyPrompt,
    GenerationConfig,
    InvalidOption,
    LLMPipeline,
    PromptTooLong,
    UnknownOption,
    UnknownToken,
)
from outrider.pipelines.text.prompt import encode_prompt
from outrider.pipelines.text.tokenizer import Tokenizer

CODE = "def area(width, height):\n    return width * height\n"
RENAME = f"Rename `width` to `breadth`.\n\n{CODE}"


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ("", EmptyPrompt, "give at least one character"),
        ([], EmptyPrompt, "give at least one"),
        (["x", ""], EmptyPrompt, "give at least one character"),
        ([{"role": "user", "content": ""}], EmptyPrompt, "give at least one character"),
        (openvino_genai.ChatHistory(), EmptyPrompt, "give at least one"),
        ("a\ud800b", InvalidOption, "half a surrogate pair in place 1"),
        ([{"role": "user", "content": "a\ud800b"}], InvalidOption, "half a surrogate pair in place 1"),
        (b"Repeat", InvalidOption, "bytes is not a prompt"),
        ([b"Repeat"], InvalidOption, "is not a chat message"),
        (None, InvalidOption, "NoneType is not a prompt"),
        (7, InvalidOption, "int is not a prompt"),
        (["x", 7], InvalidOption, "is not a chat message"),
        ([[]], EmptyPrompt, "give at least one token id"),
        ([7, "x"], InvalidOption, "is not a chat message"),
        ([[7, "x"]], InvalidOption, "'x' in a prompt of token ids is not one"),
        ([[7, True]], InvalidOption, "True in a prompt of token ids is not one"),
        ([7, 10**9], UnknownToken, "token id 1000000000 at place 1"),
        ([[7], [-1]], UnknownToken, "token id -1 at place 0"),
        ([{"role": "user"}], InvalidOption, "'role' and 'content'"),
        ([{"role": "user", "content": 7}], InvalidOption, "strings 'role' and 'content'"),
        ([{"role": "user", "content": "x", "at": {7}}], InvalidOption, "as JSON, .* set is not JSON .*give text"),
    ],
    ids=lambda given: "history" if isinstance(given, openvino_genai.ChatHistory) else str(given),
)
def test_what_is_no_prompt_is_refused(pipeline: LLMPipeline, prompt, error, message):
    for ask in (pipeline.generate, pipeline.stream):
        if ask == pipeline.stream and prompt in (["x", ""], [[7], [-1]]):
            continue
        with pytest.raises(error, match=message):
            ask(prompt, max_new_tokens=4)


@pytest.mark.parametrize("ask", ["generate", "streams"])
def test_a_prompt_that_is_refused_leaves_nothing_of_those_before_it(pipeline: LLMPipeline, ask):
    with pytest.raises(UnknownToken) as refused:
        getattr(pipeline, ask)([[7], [8], [-1]], max_new_tokens=4)
    assert refused.traceback, "whoever keeps the error keeps what its frames hold"
    assert (pipeline.backend.load.waiting, pipeline.backend.load.running) == (0, 0)


def test_a_prompt_longer_than_the_context_is_refused_with_the_figures(pipeline: LLMPipeline):
    with pytest.raises(PromptTooLong, match=rf"\d+ tokens and the model's context holds {pipeline.max_context}"):
        pipeline.generate("x " * pipeline.max_context * 2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_tokens": 5}, UnknownOption, "did you mean max_new_tokens"),
        ({"temperature": -1}, InvalidOption, "temperature=-1"),
        ({"mode": "fast"}, InvalidOption, "'draft'"),
        ({"num_return_sequences": 2}, InvalidOption, "do_sample"),
        ({"logit_bias": {5: 1, 10**9: 1}}, InvalidOption, "logit_bias has the token id 1000000000, .* from 0 to"),
        ({"stop_token_ids": {5, 10**9}}, InvalidOption, "stop_token_ids has the token id 1000000000, .* from 0 to"),
        ({"eos_token_ids": {5, 10**9}}, InvalidOption, "eos_token_ids has the token id 1000000000, .* from 0 to"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, InvalidOption, "min_new_tokens=9 is more than max_new_tokens=8"),
    ],
)
def test_bad_options_are_refused(pipeline: LLMPipeline, options, error, message):
    for ask in (pipeline.generate, pipeline.stream):
        with pytest.raises(error, match=message):
            ask(RENAME, **options)


def test_ends_that_a_model_itself_names_outside_its_vocabulary_are_no_ones_fault(embedded_pair, tmp_path):
    pair = Path(shutil.copytree(embedded_pair, tmp_path / "pair"))
    stored = pair / "target" / "generation_config.json"
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "eos_token_id": [10**6, 10**7]}))
    pipeline = LLMPipeline(pair, cache_tokens=512)
    theirs = openvino_genai.GenerationConfig(stored)
    assert theirs.stop_token_ids == {10**6, 10**7}
    theirs.max_new_tokens = 4
    assert pipeline.generate(RENAME, theirs) == pipeline.generate(RENAME, max_new_tokens=4)


def test_ends_that_were_set_for_all_calls_are_those_of_a_caller_too(embedded_pair):
    pipeline = LLMPipeline(embedded_pair, cache_tokens=512)
    for outside in ({"eos_token_ids": {10**6}}, {"stop_token_ids": {10**6}}):
        pipeline.set_generation_config(GenerationConfig(**outside))
        with pytest.raises(InvalidOption, match=f"{next(iter(outside))} has the token id 1000000"):
            pipeline.generate(RENAME, max_new_tokens=4)


@pytest.mark.parametrize("options", [{"max_length": 8}, {"max_new_tokens": 5000}, {}], ids=str)
def test_a_shortest_length_that_there_is_no_room_for_is_refused(pipeline: LLMPipeline, options):
    """Whether it is `max_length`, the context or the cache that leaves none."""
    prompt = [5, 6, 7]
    room = options.get("max_length", pipeline.max_context) - len(prompt)
    with pytest.raises(
        InvalidOption, match=rf"min_new_tokens={room + 1} is more than the {room} tokens .* prompt of 3"
    ):
        pipeline.generate(prompt, min_new_tokens=room + 1, **options)
    if options.get("max_length"):
        assert pipeline.generate(prompt, min_new_tokens=room, **options).stats[0].new_tokens == room


def test_a_shortest_length_that_the_cache_has_no_room_for_is_refused(embedded_pair):
    small = LLMPipeline(embedded_pair, cache_tokens=64)
    with pytest.raises(InvalidOption, match=r"min_new_tokens=62 is more than the 61 tokens .* cache_tokens"):
        small.generate([5, 6, 7], min_new_tokens=62)
    with pytest.raises(CacheTooSmall):
        small.generate([5] * 100, min_new_tokens=62)


def test_a_shortest_length_of_the_model_itself_gives_way_to_a_smaller_room(embedded_pair, tmp_path):
    pair = Path(shutil.copytree(embedded_pair, tmp_path / "pair"))
    stored = pair / "target" / "generation_config.json"
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "min_new_tokens": 20}))
    pipeline = LLMPipeline(pair, cache_tokens=512)
    assert pipeline.generate([5, 6, 7], max_length=10).stats[0].new_tokens == 7
    assert pipeline.generate([5, 6, 7], max_length=40).stats[0].new_tokens >= 20


@pytest.mark.parametrize("name", ["max_new_tokens", "max_length"])
def test_a_longest_length_of_the_model_itself_gives_way_to_a_smaller_cache(embedded_pair, tmp_path, name: str):
    pair = Path(shutil.copytree(embedded_pair, tmp_path / "pair"))
    path = pair / "target" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: 2000}))
    small = LLMPipeline(pair, cache_tokens=128, exact=True)
    assert small.generate(RENAME, ignore_eos=True).stats[0].new_tokens > 64
    with pytest.raises(CacheTooSmall, match="lower max_new_tokens"):
        small.generate(RENAME, **{name: 1999})


def test_a_shortest_length_that_no_token_could_reach_is_refused(pipeline: LLMPipeline):
    every = sorted(pipeline.tokenizer.vocabulary.values())
    for options in ({}, {"do_sample": True}):
        with pytest.raises(InvalidOption, match=r"min_new_tokens=2 .* every token id"):
            pipeline.generate(RENAME, min_new_tokens=2, stop_token_ids=set(every), **options)
    answer = pipeline.generate(RENAME, min_new_tokens=2, max_new_tokens=4, stop_token_ids=set(every[:-1]))
    assert answer.generations[0].token_ids[:2] == (every[-1],) * 2
    assert pipeline.generate(RENAME, stop_token_ids=set(every)).stats[0].new_tokens == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_lookup": True}, r"^prompt_lookup is for OpenVINO GenAI's engine.* on CPU .*mode='lookup'"),
        ({"draft_model": "draft"}, "^draft_model is .*exported with --draft"),
        ({"scheduler_config": openvino_genai.SchedulerConfig()}, "^scheduler_config is .*give cache_tokens"),
        ({"ATTENTION_BACKEND": "PA"}, "^ATTENTION_BACKEND is .*leave it out"),
        ({"adapters": None}, "^adapters is .*merge them into the model"),
        ({"config": {"prompt_lookup": True}}, "^prompt_lookup is "),
        ({"config": "CPU"}, "config='CPU' is not possible: give a dictionary"),
        ({"draft_device": 5}, "^int is no device"),
        ({"device": 5, "config": "CPU"}, "^int is no device: give the name of one, such as 'CPU', after the"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_arguments_for_openvino_genais_engine_are_refused_before_anything_is_loaded(tmp_path, given, message):
    with pytest.raises(InvalidOption, match=message):
        LLMPipeline(tmp_path, **given)


@pytest.mark.parametrize(
    "prompt",
    [[{"role": "user", "content": RENAME}], openvino_genai.ChatHistory([{"role": "user", "content": RENAME}])],
    ids=["messages", "history"],
)
def test_messages_without_the_template_are_refused(pipeline: LLMPipeline, prompt):
    for ask in (pipeline.generate, pipeline.stream):
        with pytest.raises(InvalidOption, match=r"^apply_chat_template=False is .* with messages.*leave it out"):
            ask(prompt, max_new_tokens=4, apply_chat_template=False)


def test_a_chat_without_the_template_is_refused_for_that_option(pipeline: LLMPipeline):
    with pytest.raises(InvalidOption, match=r"^apply_chat_template=False is not possible in a chat.*finish_chat\(\)"):
        encode_prompt("x = ", [], pipeline.tokenizer, use_template=False)
    with pytest.raises(InvalidOption, match=r"^A chat takes one message as a string"):
        encode_prompt([{"role": "user", "content": RENAME}], [], pipeline.tokenizer, use_template=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "options"),
    [
        ([5, 6], {}),
        ([{"role": "user", "content": RENAME}], {}),
        (openvino_genai.ChatHistory([{"role": "user", "content": RENAME}]), {}),
        (RENAME, {"apply_chat_template": False}),
    ],
    ids=["token ids", "messages", "history", "bare text"],
)
def test_a_chat_takes_nothing_that_is_no_message_of_it(embedded_pair, given, options):
    pipeline = LLMPipeline(embedded_pair, cache_tokens=512)
    pipeline.start_chat()
    pipeline.warm_up()
    with pytest.raises(InvalidOption, match="finish_chat"):
        pipeline.generate(given, max_new_tokens=1, **options)
    assert pipeline.generate(RENAME, max_new_tokens=3)
    pipeline.finish_chat()
    assert pipeline.generate(given, max_new_tokens=3, **options).texts


def test_one_answer_only_can_be_followed(pipeline: LLMPipeline):
    with pytest.raises(InvalidOption, match="one answer"):
        pipeline.stream([RENAME, RENAME])
    with pytest.raises(InvalidOption, match="one answer"):
        pipeline.stream(RENAME, do_sample=True, num_return_sequences=2)
    with pytest.raises(InvalidOption, match="one answer"):
        pipeline.generate([RENAME, RENAME], streamer=print)


@pytest.mark.parametrize("cache_tokens", [10**9, 2**40, 10**23])
def test_a_cache_that_is_larger_than_the_memory_is_refused_with_both_sizes(embedded_pair, cache_tokens):
    told = rf"cache of {-(-cache_tokens // 32) * 32:,} tokens takes [\d,]+ GB, .* has \d+ GB .*smaller cache_tokens"
    with pytest.raises(InvalidOption, match=told):
        LLMPipeline(embedded_pair, cache_tokens=cache_tokens)


def test_a_small_cache_refuses_what_it_cannot_hold_and_serves_the_rest(embedded_pair, pipeline: LLMPipeline, caplog):
    small = LLMPipeline(embedded_pair, cache_tokens=128, exact=True)
    with caplog.at_level(logging.WARNING):
        small.warm_up()
    assert small.exact
    assert not caplog.records
    with pytest.raises(CacheTooSmall, match=r"cache of \d+ tokens .*128.*cache_tokens="):
        small.generate(RENAME, max_new_tokens=120)
    with pytest.raises(CacheTooSmall, match=r"cache holds 128"):
        small.generate(CODE * 20)
    prompts = [f"# {n}\n{CODE}" for n in range(5)]
    expected = pipeline.generate(prompts, max_new_tokens=30, mode="off").texts
    assert small.generate(prompts, max_new_tokens=30, mode="draft").texts == expected
    assert small.speculation._pool.num_free == small.speculation._pool.num_blocks


@pytest.mark.slow
@pytest.mark.parametrize("cache_tokens", [2, 32, 64])
def test_the_smallest_caches_warm_up_and_answer(embedded_pair, cache_tokens):
    tiny = LLMPipeline(embedded_pair, cache_tokens=cache_tokens)
    tiny.warm_up()
    answer = tiny.generate("x", max_new_tokens=4, apply_chat_template=False, mode="draft")
    assert answer.stats[0].new_tokens <= 4


@pytest.mark.slow
def test_warming_up_while_a_request_holds_the_cache_waits_or_goes_on(embedded_pair):
    busy = LLMPipeline(embedded_pair, cache_tokens=128)
    stream = busy.stream("x", apply_chat_template=False, ignore_eos=True)
    next(stream)
    busy.warm_up()
    assert stream.finish().finish_reason == "length"


@pytest.mark.parametrize("history", [[], [{"role": "user", "content": "Hi"}]])
def test_a_model_without_a_chat_template_cannot_chat(pipeline: LLMPipeline, monkeypatch, history):
    monkeypatch.setattr(Tokenizer, "has_chat_template", False)
    with pytest.raises(InvalidOption, match=r"no chat template, so it cannot chat: call finish_chat\(\)"):
        encode_prompt("x = ", history, pipeline.tokenizer, use_template=True)
    assert encode_prompt("x = ", None, pipeline.tokenizer, use_template=True)
    with pytest.raises(InvalidOption, match="no chat template, so it takes no messages: give the prompt as text"):
        pipeline.tokenizer.apply_chat_template([{"role": "user", "content": "x = "}])
