"""/v1/chat/completions with OpenAI's own client: what it asks for, it gets, and the tokens are the pipeline's."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, Literal

import openai
import pydantic
import pytest

from .serving import AREA, MODEL, REPEAT, Served, user

SAMPLED = {"temperature": 1.6, "seed": 11, "max_tokens": 24}


def plain(served: Served, prompt: str, **options: Any) -> str:
    """What plain decoding answers, without the server."""
    return str(served.pipeline.generate(prompt, mode="off", **options))


def test_the_answer_is_that_of_plain_decoding_with_its_figures(served: Served, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user(REPEAT), temperature=0)
    (choice,) = answer.choices
    assert choice.message.content == plain(served, REPEAT, do_sample=False) == AREA
    assert (choice.message.role, choice.finish_reason, choice.index) == ("assistant", "stop", 0)
    usage = served.pipeline.generate(REPEAT, mode="off", do_sample=False).stats[0]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (usage.prompt_tokens, usage.new_tokens)
    assert answer.usage.total_tokens == usage.prompt_tokens + usage.new_tokens
    assert answer.object == "chat.completion"


@pytest.mark.parametrize("mode", ["off", "lookup", "suffix", "recycling", "draft", "head", "chained", "auto", None])
def test_speculation_changes_the_figures_and_nothing_else(
    served: Served, client: openai.OpenAI, always_drafting: None, mode: str
) -> None:
    extra = {} if mode is None else {"speculation": mode}
    answer: Any = client.chat.completions.create(model=MODEL, messages=user(REPEAT), extra_body=extra, **SAMPLED)
    options = {"do_sample": True, "temperature": 1.6, "rng_seed": 11, "max_new_tokens": 24}
    assert answer.choices[0].message.content == plain(served, REPEAT, **options)
    figures = answer.speculation
    assert figures["mode"] == (mode or "auto")
    assert sum(figures["drafted_by"].values()) == figures["drafted"] >= figures["accepted"]
    assert sum(figures["accepted_by"].values()) == figures["accepted"]
    assert figures["passes"] + figures["accepted"] >= answer.usage.completion_tokens
    assert (figures["drafted"] > 0) == (mode != "off")
    drafter = {"draft": "draft_model", "head": "head"}.get(mode)
    assert drafter is None or {*figures["drafted_by"]} == {drafter}


def test_a_stream_adds_up_to_the_answer_and_ends_with_its_figures(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": user("Write a function that merges two lists."), "n": 3, **SAMPLED}
    whole = client.chat.completions.create(**options)
    stream = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options)
    chunks: list[Any] = list(stream)
    texts, finishes = [""] * 3, [None] * 3
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        finishes[choice.index] = choice.finish_reason
        assert chunk.usage is None
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == [choice.finish_reason for choice in whole.choices]
    assert len(set(texts)) == 3
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].speculation["mode"] == "auto"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.seed for chunk in chunks} == {11}


def test_without_include_usage_the_last_chunk_has_the_figures(client: openai.OpenAI) -> None:
    chunks: list[Any] = list(client.chat.completions.create(model=MODEL, messages=user(REPEAT), stream=True, **SAMPLED))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].speculation["passes"] > 0
    assert all(chunk.usage is None and not hasattr(chunk, "speculation") for chunk in chunks[:-1])


def test_a_seed_that_was_drawn_gives_the_same_answer_again(client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": user("Write a function."), "max_tokens": 24, "temperature": 1.2}
    first: Any = client.chat.completions.create(**options)
    other: Any = client.chat.completions.create(**options)
    again: Any = client.chat.completions.create(**options, seed=first.seed)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.seed == first.seed != other.seed
    assert other.choices[0].message.content != first.choices[0].message.content


def test_settings_reach_the_pipeline(served: Served, client: openai.OpenAI) -> None:
    extra = {"top_k": 40, "min_p": 0.02, "repetition_penalty": 1.1}
    answer = client.chat.completions.create(
        model=MODEL, messages=user(REPEAT), seed=5, temperature=1.3, top_p=0.8, presence_penalty=0.5,
        frequency_penalty=0.7, max_completion_tokens=30, stop=["idth", "@"], extra_body=extra,
    )  # fmt: skip
    expected = plain(
        served, REPEAT, rng_seed=5, do_sample=True, temperature=1.3, top_p=0.8, presence_penalty=0.5,
        frequency_penalty=0.7, max_new_tokens=30, stop_strings={"idth", "@"}, **extra,
    )  # fmt: skip
    assert answer.choices[0].message.content == expected


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user(REPEAT), temperature=0, stop="return")
    assert answer.choices[0].message.content == AREA[: AREA.index("return")]
    assert answer.choices[0].finish_reason == "stop"


def test_roles_and_parts_reach_the_chat_template(served: Served, client: openai.OpenAI) -> None:
    messages: Any = [
        {"role": "developer", "content": "You edit code."},
        {"role": "user", "content": [{"type": "text", "text": "Repeat "}, {"type": "text", "text": "this:\nx"}]},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": REPEAT},
    ]
    same = [{"role": "system", "content": "You edit code."}, {"role": "user", "content": "Repeat this:\nx"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    expected = served.pipeline.generate([*same, *messages[2:]], mode="off", do_sample=False)
    assert answer.choices[0].message.content == expected.texts[0]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.stats[0].prompt_tokens


def test_log_probabilities_are_those_of_the_pipeline(served: Served, client: openai.OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": user(REPEAT), "logprobs": True, "top_logprobs": 3, **SAMPLED}
    answer = client.chat.completions.create(**options)
    expected = served.pipeline.generate(
        REPEAT, mode="off", logprobs=3, do_sample=True, temperature=1.6, rng_seed=11, max_new_tokens=24
    ).generations[0]
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content
    assert entries is not None
    tokenizer = served.pipeline.tokenizer
    names = {token: name.decode() for name, token in tokenizer.vocabulary.items() if name.startswith(b"<|")}

    def shown(token: int) -> str:
        return names.get(token) or tokenizer.decode([token])

    assert [entry.token for entry in entries] == [shown(token) for token in expected.token_ids]
    assert [entry.logprob for entry in entries] == [token.logprob for token in expected.logprobs]
    for entry, token in zip(entries, expected.logprobs, strict=True):
        assert [(top.token, top.logprob) for top in entry.top_logprobs] == [(shown(i), p) for i, p in token.top]
        assert math.exp(entry.logprob) <= 1
        assert entry.bytes == (None if token.token in names else list(entry.token.encode()))
    chunks: Any = list(client.chat.completions.create(**options, stream=True))
    streamed = [e for chunk in chunks if (told := chunk.choices[0].logprobs) for e in told.content]
    assert streamed == entries
    without = client.chat.completions.create(**{**options, "top_logprobs": 0})
    assert without.choices[0].logprobs is not None
    assert without.choices[0].logprobs.content is not None
    assert [entry.top_logprobs for entry in without.choices[0].logprobs.content] == [[]] * len(entries)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["area", "volume"]},
        "sizes": {
            "type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 2
        },
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize("mode", ["off", "auto"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_keeps_to_its_schema(client: openai.OpenAI, mode: str, temperature: float) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=user(REPEAT), temperature=temperature, seed=3, max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "sizes", "schema": SCHEMA, "strict": True}},
        extra_body={"speculation": mode},
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "stop"
    value = json.loads(answer.choices[0].message.content or "")
    assert set(value) == {"name", "sizes"}
    assert value["name"] in ("area", "volume")
    assert [type(size) for size in value["sizes"]] == [int, int]


def test_a_json_object_is_one_as_far_as_it_goes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=user(REPEAT), seed=1, max_tokens=40, response_format={"type": "json_object"}
    )
    text = answer.choices[0].message.content or ""
    assert text.lstrip().startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_an_impossible_schema_is_refused_with_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model=MODEL, messages=user("x"),
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "colour"}}},
        )  # fmt: skip
    assert refused.value.param == "response_format"


def test_the_asynchronous_client_is_served_alike(served: Served) -> None:
    async def ask() -> tuple[str | None, str]:
        async with served.async_client() as client:
            whole, stream = await asyncio.gather(
                client.chat.completions.create(model=MODEL, messages=user(REPEAT), temperature=0),
                client.chat.completions.create(model=MODEL, messages=user(REPEAT), temperature=0, stream=True),
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return whole.choices[0].message.content, "".join(pieces)

    assert asyncio.run(ask()) == (AREA, AREA)


def test_the_clients_own_stream_helper_understands_the_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=user(REPEAT), temperature=0) as stream:
        assert stream.get_final_completion().choices[0].message.content == AREA


def test_an_answer_can_be_sent_back_as_it_came(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model=MODEL, messages=user(REPEAT), temperature=0)
    messages: Any = [*user(REPEAT), first.choices[0].message.model_dump(), *user("Add a docstring.")]
    assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4).choices


class Size(pydantic.BaseModel):
    width: Literal[3]


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_a_parsed_answer_can_be_sent_back_as_it_came(client: openai.OpenAI, as_dictionary: bool) -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=user("x"), temperature=0, response_format=Size)
    message = parsed.choices[0].message
    assert message.parsed == Size(width=3)
    messages: Any = [*user("x"), message.model_dump() if as_dictionary else message, *user("y")]
    assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1).choices


def test_the_models_own_stop_strings_end_an_answer_unless_the_request_has_others(
    served: Served, client: openai.OpenAI
) -> None:
    def written(**options: Any) -> str | None:
        answer = client.chat.completions.create(model=MODEL, messages=user(REPEAT), temperature=0, **options)
        return answer.choices[0].message.content

    usual = served.pipeline.get_generation_config()
    served.pipeline.set_generation_config({"stop_strings": {"return"}})
    try:
        assert [written(), written(stop=" * "), written(stop=[])] == [
            AREA.partition("return")[0], AREA.partition(" * ")[0], AREA,
        ]  # fmt: skip
    finally:
        served.pipeline.set_generation_config(usual)
