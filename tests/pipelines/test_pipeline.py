"""The public class on the embedded pair: what goes in, what comes out, who may ask at once."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import openvino
import openvino_genai
import pytest

from outrider.pipelines import (
    MODES,
    DecodedText,
    GenerationConfig,
    InvalidOption,
    LLMPipeline,
    Statistics,
    StructuredOutputConfig,
)
from outrider.pipelines import pipeline as pipeline_module
from outrider.pipelines.text.prompt import TokenPrompt, encode_prompt, num_earlier_tokens

from .serving import COST

CODE = "def area(width, height):\n    return width * height\n"
RENAME = f"Rename `width` to `breadth`.\n\n{CODE}"
SAMPLED = {"do_sample": True, "temperature": 0.9, "rng_seed": 4}


@pytest.fixture(autouse=True)
def nothing_is_left_behind(pipeline: LLMPipeline):
    config = pipeline.get_generation_config()
    yield
    assert pipeline.speculation._pool.num_free == pipeline.speculation._pool.num_blocks, "blocks leaked"
    pipeline.finish_chat()
    pipeline.set_generation_config(config)


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=str)
def test_every_mode_writes_the_same(pipeline: LLMPipeline, options):
    answers = [pipeline.generate(RENAME, max_new_tokens=40, mode=mode, **options) for mode in pipeline.modes]
    assert set(pipeline.modes) == {*MODES} - {"skip", "exit"}
    assert len({answer.generations[0].token_ids for answer in answers}) == 1
    assert len(set(map(str, answers))) == 1
    assert [set(answer.generations[0].sources) - {"target"} for answer in answers[:1]] == [set()]


def test_a_string_is_answered_with_a_string_that_has_the_details(pipeline: LLMPipeline):
    answer = pipeline.generate(RENAME, max_new_tokens=12, mode="draft")
    (generation,) = answer.generations
    assert isinstance(answer, DecodedText)
    assert answer == generation.text == answer.texts[0] == str(answer)
    assert "".join(span.text for span in generation.spans) == generation.text
    assert len(generation.token_ids) == len(generation.sources) == generation.stats.new_tokens
    assert generation.finish_reason in ("stop", "length")
    assert answer.stats == [generation.stats]
    assert set(generation.stats.as_dict()) == set(Statistics.__dataclass_fields__)
    for same in (copy.deepcopy(answer), pickle.loads(pickle.dumps(answer))):
        assert isinstance(same, DecodedText)
        assert (same, same.generations) == (answer, answer.generations)


def test_several_prompts_are_answered_in_order_as_each_alone(pipeline: LLMPipeline):
    prompts = [RENAME, "Repeat this function.\n\n" + CODE, "x", CODE * 20]
    together = pipeline.generate(prompts, max_new_tokens=16, mode="draft", **SAMPLED)
    alone = [pipeline.generate(prompt, max_new_tokens=16, mode="off", **SAMPLED) for prompt in prompts]
    assert together.texts == alone
    assert len(together.stats) == len(prompts)


def test_several_answers_to_one_prompt_differ_and_repeat(pipeline: LLMPipeline):
    options = {"do_sample": True, "temperature": 1.5, "num_return_sequences": 3, "max_new_tokens": 24}
    answers = pipeline.generate([RENAME], mode="lookup", **options)
    assert len(set(answers.texts)) == 3
    assert answers.texts == pipeline.generate(RENAME, mode="draft", **options).texts


def test_a_prompt_is_put_into_the_chat_template_unless_told_otherwise(pipeline: LLMPipeline):
    wrapped = pipeline.tokenizer.apply_chat_template([{"role": "user", "content": RENAME}])
    raw = {"apply_chat_template": False, "max_new_tokens": 12}
    as_text = pipeline.generate(RENAME, max_new_tokens=12)
    assert pipeline.generate(wrapped, **raw) == as_text
    messages = [{"role": "user", "content": RENAME}]
    assert pipeline.generate(messages, max_new_tokens=12).texts == [as_text]
    history = openvino_genai.ChatHistory(messages)
    assert pipeline.generate(history, max_new_tokens=12).texts == [as_text]
    plain, wrapped_stats = (pipeline.generate(RENAME, **o).stats[0] for o in (raw, {"max_new_tokens": 12}))
    assert plain.prompt_tokens < wrapped_stats.prompt_tokens


def test_token_ids_are_taken_as_they_are(pipeline: LLMPipeline):
    prompts = [CODE, RENAME]
    ids = [pipeline.tokenizer.encode(prompt) for prompt in prompts]
    expected = pipeline.generate(prompts, max_new_tokens=12, apply_chat_template=False).generations
    given = pipeline.generate(ids, max_new_tokens=12).generations
    assert [each.token_ids for each in given] == [each.token_ids for each in expected]
    assert [each.stats.prompt_tokens for each in given] == [len(each) for each in ids]
    for one in (ids[0], [*np.array(ids[0])]):  # the second has numpy's numbers
        (alone,) = pipeline.generate(one, max_new_tokens=12).generations
        assert alone.token_ids == expected[0].token_ids


def test_a_chat_remembers_what_was_said(pipeline: LLMPipeline):
    options = {"max_new_tokens": 16, "mode": "draft"}
    pipeline.start_chat("Answer with code.")
    first = pipeline.generate(RENAME, **options)
    second = pipeline.generate("Now remove it.", **options)
    messages = [
        {"role": "system", "content": "Answer with code."},
        {"role": "user", "content": RENAME},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "Now remove it."},
    ]
    pipeline.finish_chat()
    assert pipeline.generate(messages[:2], **options).texts == [first]
    assert pipeline.generate(messages, mode="off", max_new_tokens=16).texts == [second]
    assert second.stats[0].cached_tokens > 0


def test_the_tokens_of_earlier_turns_are_those_up_to_the_latest_answer(pipeline: LLMPipeline):
    tokenizer = pipeline.tokenizer
    question, answer = {"role": "user", "content": RENAME}, {"role": "assistant", "content": "def area(breadth): ..."}
    for earlier, due in (([question, answer], "Now remove it."), ([question, answer, question, answer], "Why?")):
        messages = [*earlier, {"role": "user", "content": due}]
        tokens = encode_prompt(messages, None, tokenizer, True)
        num_earlier = num_earlier_tokens(messages, None, tokenizer, True, tokens)
        before, after = tokenizer.decode(tokens[:num_earlier]), tokenizer.decode(tokens[num_earlier:])
        assert before.count(RENAME) == before.count("def area(breadth): ...") == len(earlier) // 2
        assert due in after
        assert RENAME not in after
        assert num_earlier_tokens(due, earlier, tokenizer, True, tokens) == num_earlier
        history = openvino_genai.ChatHistory(messages)
        assert num_earlier_tokens(history, None, tokenizer, True, tokens) == num_earlier
    for prompt, history in ((RENAME, None), ([question], None), (TokenPrompt((5, 6, 7)), None), (RENAME, [])):
        tokens = encode_prompt(prompt, history, tokenizer, True)
        assert num_earlier_tokens(prompt, history, tokenizer, True, tokens) == 0


@pytest.mark.parametrize("mode", ["lookup", "suffix", "auto"])
def test_an_answer_tells_what_it_owes_to_earlier_turns(pipeline: LLMPipeline, mode: str, monkeypatch):
    pipeline.speculation.measure()
    monkeypatch.setattr(pipeline.speculation._planner, "cost", replace(COST))  # drafts pay on any machine
    settings = {"mode": mode, "max_new_tokens": 40, "num_assistant_tokens": 5}
    alone = pipeline.generate(RENAME, **settings)
    assert "earlier_turn" not in alone.generations[0].sources
    messages = [{"role": "user", "content": RENAME}, {"role": "assistant", "content": alone.texts[0]}]
    (again,) = pipeline.generate([*messages, {"role": "user", "content": "Repeat it."}], **settings).generations
    assert again.stats.accepted_by["earlier_turn"] > 0
    assert again.sources.count("earlier_turn") == again.stats.accepted_by["earlier_turn"]


def test_a_chat_forgets_when_it_is_finished_or_an_answer_was_closed(pipeline: LLMPipeline):
    alone = pipeline.generate(RENAME, max_new_tokens=8)
    pipeline.start_chat()
    stream = pipeline.stream("Something else.", max_new_tokens=8)
    next(stream)
    stream.close()
    assert pipeline.generate(RENAME, max_new_tokens=8) == alone
    for ask in (pipeline.generate, pipeline.streams):
        with pytest.raises(InvalidOption, match=r"one message at a time.*finish_chat"):
            ask([RENAME, RENAME], max_new_tokens=8)
    pipeline.finish_chat()
    assert pipeline.generate(RENAME, max_new_tokens=8) == alone


def test_a_stream_gives_pieces_that_add_up(pipeline: LLMPipeline):
    whole = pipeline.generate(RENAME, max_new_tokens=30, mode="off").generations[0]
    pieces = list(pipeline.stream(RENAME, max_new_tokens=30, mode="draft"))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert sum((piece.token_ids for piece in pieces), ()) == whole.token_ids
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [whole.finish_reason]
    assert pieces[-1].stats.new_tokens == len(whole.token_ids)
    assert len(pieces) > 2


def test_a_closed_or_dropped_stream_frees_its_blocks_at_once(pipeline: LLMPipeline):
    for end in ("close", "drop", "with"):
        stream = pipeline.stream(RENAME, max_new_tokens=30, mode="draft")
        next(stream)
        assert pipeline.speculation._pool.num_free < pipeline.speculation._pool.num_blocks
        if end == "close":
            stream.close()
        elif end == "with":
            with stream:
                next(stream)
        else:
            del stream
        assert pipeline.speculation._pool.num_free == pipeline.speculation._pool.num_blocks


def test_stop_strings_end_the_text_before_them(pipeline: LLMPipeline):
    whole = str(pipeline.generate(RENAME, max_new_tokens=40))
    stop = whole[len(whole) // 2 :][:3]
    expected = whole[: whole.index(stop)]
    for mode in pipeline.modes:
        answer = pipeline.generate(RENAME, max_new_tokens=40, mode=mode, stop_strings={stop})
        kept = pipeline.generate(
            RENAME, max_new_tokens=40, mode=mode, stop_strings={stop}, include_stop_str_in_output=True
        )
        assert (answer, kept) == (expected, expected + stop)
        assert answer.generations[0].finish_reason == "stop"


def test_configurations_of_both_kinds_are_taken(pipeline: LLMPipeline):
    ours = GenerationConfig(max_new_tokens=10, do_sample=True, rng_seed=3, temperature=1.1)
    theirs = openvino_genai.GenerationConfig()
    theirs.max_new_tokens, theirs.do_sample, theirs.rng_seed, theirs.temperature = 10, True, 3, 1.1
    assert pipeline.generate(RENAME, ours) == pipeline.generate(RENAME, theirs)
    assert pipeline.generate(RENAME, theirs, max_new_tokens=3) == pipeline.generate(RENAME, ours, max_new_tokens=3)
    pipeline.set_generation_config(theirs)
    assert pipeline.generate(RENAME) == pipeline.generate(RENAME, ours)
    assert pipeline.get_generation_config().eos_token_ids == {pipeline.tokenizer.eos_token_id}


def test_properties_are_taken_as_openvino_genai_takes_them(embedded_pair):
    properties = {"INFERENCE_PRECISION_HINT": openvino.Type.f32, "INFERENCE_NUM_THREADS": 2}
    pipeline = LLMPipeline(embedded_pair, "CPU", properties, INFERENCE_NUM_THREADS=1, cache_tokens=512, exact=False)
    assert pipeline.speculation.precision == "f32"
    assert pipeline.speculation.num_threads == 1
    assert pipeline.generate(RENAME, max_new_tokens=4, num_beams=1, echo=False)


def test_lengths_are_kept(pipeline: LLMPipeline):
    prompt_tokens = pipeline.generate(RENAME, max_new_tokens=1).stats[0].prompt_tokens
    short = pipeline.generate(RENAME, max_length=prompt_tokens + 5, ignore_eos=True).generations[0]
    assert (short.stats.new_tokens, short.finish_reason) == (5, "length")
    long = pipeline.generate(RENAME, min_new_tokens=60, max_new_tokens=60).generations[0]
    assert (long.stats.new_tokens, long.finish_reason) == (60, "length")
    with pytest.raises(InvalidOption, match=f"max_length={prompt_tokens} leaves no room"):
        pipeline.generate(RENAME, max_length=prompt_tokens)


@pytest.mark.slow
def test_threads_at_once_get_the_texts_that_each_gets_alone(pipeline: LLMPipeline):
    asked = [
        (f"{RENAME}# {n % 4}\n", {**SAMPLED, "rng_seed": n, "mode": mode, "max_new_tokens": 20})
        for n, mode in enumerate(pipeline.modes * 2)
    ]
    alone = [pipeline.generate(prompt, **{**options, "mode": "off"}) for prompt, options in asked]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda one: pipeline.generate(one[0], **one[1]), asked))
        streamed = list(threads.map(lambda one: "".join(p.text for p in pipeline.stream(one[0], **one[1])), asked))
    assert together == alone
    assert streamed == alone


def test_what_was_computed_before_is_taken_over(pipeline: LLMPipeline):
    prompt = "# a prompt of its own\n" + CODE * 8
    first, second = (pipeline.generate(prompt, max_new_tokens=4).stats[0] for _ in range(2))
    assert second.cached_tokens >= first.prompt_tokens - 33
    assert second.cached_tokens > first.cached_tokens


def test_passes_never_go_back_in_time(pipeline: LLMPipeline):
    stream = pipeline.stream(RENAME, max_new_tokens=20)
    stream.finish()
    trace = stream._request.trace
    assert all(record.began <= record.ended for record in trace)
    assert all(one.ended <= other.began for one, other in pairwise(trace))


def test_what_was_computed_can_be_forgotten(pipeline: LLMPipeline):
    fresh = "def forgotten(one, two):\n    return one + two\n" * 4
    answers = []
    for _ in range(2):
        pipeline.speculation.forget_prompts()
        answers.append(pipeline.generate(fresh, max_new_tokens=8, mode="draft"))
    remembered = pipeline.generate(fresh, max_new_tokens=8, mode="draft")
    assert [answer.stats[0].cached_tokens for answer in answers] == [0, 0]
    assert remembered.stats[0].cached_tokens > 0
    assert answers[0] == answers[1] == remembered


def test_what_a_head_read_can_be_forgotten(pipeline: LLMPipeline):
    """Otherwise hidden states of a prompt stay in memory."""
    (head,) = (each.drafter for each in pipeline.speculation._drafting if each.name == "head")
    kept = "def kept(one, two):\n    return one + two\n" * 4
    pipeline.generate(kept, max_new_tokens=8, mode="head", num_assistant_tokens=2)
    assert head._kept.num_bytes > 0
    pipeline.speculation.forget_prompts()
    assert head._kept.num_bytes == 0


def test_what_token_recycling_read_can_be_forgotten(pipeline: LLMPipeline):
    """Otherwise whoever answers a prompt a second time finds the first answer drafted."""
    options = {"max_new_tokens": 24, "mode": "recycling", "num_assistant_tokens": 4}
    fresh = "Complete this function:\ndef remembered(first, second):\n"
    accepted = []
    for forgets in (True, True, False):
        if forgets:
            pipeline.speculation.forget_prompts()
        accepted.append(pipeline.generate(fresh, **options).stats[0].accepted)
    assert accepted[0] == accepted[1] < accepted[2]


def test_an_answer_tells_what_happened_in_each_pass(pipeline: LLMPipeline):
    (generation,) = pipeline.generate(RENAME, max_new_tokens=24, mode="lookup").generations
    assert len(generation.trace) == generation.stats.passes
    assert tuple(source for record in generation.trace for source in record.sources) == generation.sources


def test_streams_are_the_answers_of_generate_in_its_order(pipeline: LLMPipeline):
    options = {**SAMPLED, "max_new_tokens": 12, "num_return_sequences": 2, "mode": "suffix"}
    prompts = [RENAME, CODE]
    streams = pipeline.streams(prompts, **options)
    pieces = {id(stream): "" for stream in streams}
    while not all(stream.ended for stream in streams):
        pipeline.backend.step()
        for stream in streams:
            if (piece := stream.take()) is not None:
                pieces[id(stream)] += piece.text
    assert list(pieces.values()) == pipeline.generate(prompts, **options).texts


def test_a_prompt_is_read_and_a_form_compiled_once_for_all_answers(pipeline: LLMPipeline, monkeypatch):
    calls = []
    for owner, name in ((pipeline.tokenizer, "encode"), (pipeline._grammars, "constraint")):
        whole = getattr(owner, name)

        def counted(*given, whole=whole, name=name):
            calls.append(name)
            return whole(*given)

        monkeypatch.setattr(owner, name, counted)
    form = {"structured_output_config": StructuredOutputConfig(regex="[a-z ]{4,40}")}
    options = {**SAMPLED, **form, "temperature": 2.0, "max_new_tokens": 12, "apply_chat_template": False}
    pipeline.generate(RENAME, **options)
    calls_of_one = [*calls]
    calls.clear()
    several = pipeline.generate(RENAME, num_return_sequences=3, **options)
    assert calls == calls_of_one
    assert len(set(several.texts)) == 3
    calls.clear()
    streams = pipeline.streams(RENAME, num_return_sequences=3, **options)
    assert calls == calls_of_one
    assert [stream.finish().text for stream in streams] == several.texts
    assert several.texts == pipeline.generate(RENAME, num_return_sequences=3, **{**options, "mode": "off"}).texts


@pytest.mark.slow
def test_warming_up_does_not_depend_on_what_answers_are_to_be_like(pipeline: LLMPipeline):
    form = StructuredOutputConfig(regex="[a-z]+")
    for options in ({"num_return_sequences": 2}, {"min_new_tokens": 20}, {"structured_output_config": form}):
        pipeline.set_generation_config(GenerationConfig(do_sample=True, **options))
        pipeline.warm_up()


def test_warming_up_takes_no_longer_with_a_slow_model(pipeline: LLMPipeline, monkeypatch):
    """It ends with the piece that is on when its time is up, and whoever asks next is not kept waiting."""
    used, open_one = [], pipeline._open

    def noting(prompt, config, history):
        used.append(config.mode)
        return open_one(prompt, config, history)

    monkeypatch.setattr(pipeline, "_open", noting)
    monkeypatch.setattr(pipeline_module, "WARM_UP_S", float("inf"))
    pipeline.warm_up()
    assert used == list(pipeline.modes)
    used.clear()
    monkeypatch.setattr(pipeline_module, "WARM_UP_S", 0.0)
    pipeline.warm_up()
    assert used == ["off"]


def test_a_request_can_be_added_while_a_pass_is_on(pipeline: LLMPipeline):
    """Nobody waits for the pass: here it only ends when the request has been added."""
    with pipeline.backend.lock, ThreadPoolExecutor(1) as other:
        (stream,) = other.submit(pipeline.streams, RENAME, max_new_tokens=4, mode="off").result(timeout=60)
    assert stream.finish().text == str(pipeline.generate(RENAME, max_new_tokens=4, mode="off"))


def test_the_tools_and_variables_of_a_history_reach_the_template(pipeline: LLMPipeline):
    """OpenVINO GenAI tells of tools itself where a template does not."""
    messages = [{"role": "user", "content": "Use a tool."}]
    tool = {"type": "function", "function": {"name": "area", "description": "Width by height", "parameters": {}}}
    plain = pipeline.tokenizer.apply_chat_template(messages)
    prompt = pipeline.tokenizer.apply_chat_template(messages, tools=[tool], extra_context={"colour": "red"})
    assert "Width by height" in prompt
    assert "Width by height" not in plain
    history = openvino_genai.ChatHistory(messages)
    history.set_tools([tool])
    stats = pipeline.generate(history, max_new_tokens=2).stats[0]
    assert stats.prompt_tokens == len(pipeline.tokenizer.encode(prompt, False))
