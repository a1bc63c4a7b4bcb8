"""Tools: what a model writes as a call arrives as one, however it is cut; what is none stays text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest

from outrider.app.server.call_grammar import one_call
from outrider.app.server.tools import (
    END,
    HermesToolParser,
    Llama3JsonToolParser,
    PlainTextParser,
    ToolParser,
    tool_parser_for,
)
from outrider.pipelines import LLMPipeline

from .serving import MODEL, Served, running, user
from .tools import TEMPLATE, pair_with_tools

CALL = '<tool_call>\n{"name": "area", "arguments": {"width": 3, "unit": "é"}}\n</tool_call>'
PARSED = ("area", {"width": 3, "unit": "é"})
LLAMA = '{"name": "area", "parameters": {"width": 3, "unit": "é"}}'
UNWRITABLE = [  # in JSON that is sent as UTF-8
    f'<tool_call>{{"name": "f", "arguments": {{"a": {value}}}}}</tool_call>' for value in ('"\\ud83d"', "NaN", "1e999")
]
INSIDE = '<tool_call>{"name": "f", "arguments": {"s": "a </tool_call> \\" b", "</tool_call>": 1}}</tool_call>'
UNENDED = '<tool_call>{"name": "f</tool_call> and '
WRITTEN = {
    f"{INSIDE} and {CALL}": ("and", [("f", {"s": 'a </tool_call> " b', "</tool_call>": 1}), PARSED]),
    f"{UNENDED}{CALL}": (UNENDED, [PARSED]),
    f"Let me see.\n{CALL}": ("Let me see.", [PARSED]),
    f"{CALL}\n{CALL}": ("", [PARSED, PARSED]),
    "No call, but <tool and <tool_cal": ("No call, but <tool and <tool_cal", []),
    "<tool_call>not JSON</tool_call> after": ("<tool_call>not JSON</tool_call> after", []),
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>': ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', []),
    '<tool_call>{"name": "f", "arguments": {': ('<tool_call>{"name": "f", "arguments": {', []),
    **{call: (call, []) for call in UNWRITABLE},
    "spaces at the end  \n": ("spaces at the end  \n", []),
    "": ("", []),
}

AREA_TOOL = {
    "type": "function",
    "function": {"name": "area", "parameters": {"type": "object", "properties": {}}},
}
COPIED = 'def call():\n    return <tool_call>{"name": "area", "arguments": {"width": 3}}</tool_call>'
ASK = user(f"Repeat this function.\n\n{COPIED}")
OFFERED: Any = {"model": MODEL, "messages": ASK, "tools": [AREA_TOOL], "temperature": 0}


class Area(pydantic.BaseModel):
    width: Literal[3]


def parsed(parser: ToolParser, parts: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    found = [parser.parse(part, i == len(parts) - 1) for i, part in enumerate(parts)]
    calls = [call for part in found for call in part.calls]
    assert len({call.id for call in calls}) == len(calls)
    return "".join(part.text for part in found), [(call.name, json.loads(call.arguments)) for call in calls]


def with_parameters(parameters: Any) -> Any:
    return {"type": "function", "function": {"name": "f", **({} if parameters is None else {"parameters": parameters})}}


def cuts(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.sample(range(len(text) + 1), rng.randint(0, min(6, len(text)))))
    return [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("text", WRITTEN, ids=repr)
def test_tagged_calls_are_found_however_the_text_is_cut(text: str) -> None:
    rng = random.Random(text)
    for parts in ([text], list(text) or [""], *(cuts(text, rng) for _ in range(50))):
        found, calls = parsed(HermesToolParser(), parts)
        expected, expected_calls = WRITTEN[text]
        assert calls == expected_calls, parts
        assert found.rstrip() == expected.rstrip(), parts
        assert calls or found == expected, parts


def test_text_before_a_call_is_told_at_once() -> None:
    parser = HermesToolParser()
    assert parser.parse("Let me ", False).text == "Let me"
    assert parser.parse("see: <", False).text == " see:"
    assert parser.parse("b> is bold", False).text == " <b> is bold"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LLAMA, ("", [PARSED])),
        (f"\n{LLAMA}\n", ("", [PARSED])),
        ("Plain text", ("Plain text", [])),
        ("{ is a brace", ("{ is a brace", [])),
        ('{"name": "area"}', ('{"name": "area"}', [])),
    ],
)
def test_a_bare_call_is_the_whole_answer_or_none(text: str, expected: Any) -> None:
    rng = random.Random(text)
    for parts in ([text], list(text), *(cuts(text, rng) for _ in range(50))):
        assert parsed(Llama3JsonToolParser(), parts) == expected, parts


def test_the_chat_template_tells_how_calls_are_written() -> None:
    assert tool_parser_for(TEMPLATE) is HermesToolParser
    assert tool_parser_for('{% if tools %}{"name": name, "parameters": {}}') is Llama3JsonToolParser
    assert tool_parser_for("{% if tools %}<tool_call><function=x>") is None
    assert tool_parser_for("{{ messages }}") is None
    assert PlainTextParser().parse(CALL, True).text == CALL


@pytest.fixture(scope="module")
def with_tools(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The embedded pair with a chat template that knows tools; the model copies a call when it is told to."""
    pair = pair_with_tools(embedded_pair, tmp_path_factory.mktemp("tools") / "pair")
    with running(LLMPipeline(pair)) as served:
        yield served


@pytest.fixture
def client(with_tools: Served) -> Iterator[openai.OpenAI]:
    with with_tools.client() as client:
        yield client


def test_a_call_arrives_as_one(client: openai.OpenAI) -> None:
    answer: Any = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[AREA_TOOL], tool_choice="auto", temperature=0
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "def call():\n    return"
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "area", {"width": 3})


def test_a_stream_carries_the_same_call(client: openai.OpenAI) -> None:
    chunks: Any = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[AREA_TOOL], temperature=0, stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "def call():\n    return"
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (call.index, call.function.name, json.loads(call.function.arguments)) == (0, "area", {"width": 3})


@pytest.mark.parametrize("content", ["12", ""])
def test_the_result_of_a_call_goes_back_to_the_model(client: openai.OpenAI, with_tools: Served, content: str) -> None:
    first: Any = client.chat.completions.create(model=MODEL, messages=ASK, tools=[AREA_TOOL], temperature=0)
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": content}
    answer = client.chat.completions.create(
        model=MODEL, messages=[*ASK, message.model_dump(), result], tools=[AREA_TOOL], max_tokens=4
    )
    template = with_tools.pipeline.tokenizer.apply_chat_template
    function = {"name": "area", "arguments": {"width": 3}}
    prompt = template(
        [*ASK, {"role": "assistant", "content": "def call():\n    return",
                "tool_calls": [{"function": function}]}, {"role": "tool", "content": content}],
        tools=[AREA_TOOL],
    )  # fmt: skip
    assert '<tool_call>{"name": "area", "arguments": {"width": 3}}</tool_call>' in prompt
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(with_tools.pipeline.tokenizer.encode(prompt, False))


def accumulated(client: openai.OpenAI) -> Any:
    """The message that OpenAI's guide makes of a stream."""
    calls: dict[int, Any] = {}
    for chunk in client.chat.completions.create(**OFFERED, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            if call.index in calls:
                calls[call.index].function.arguments += call.function.arguments
            else:
                calls[call.index] = call
    return {"role": "assistant", "tool_calls": list(calls.values())}


def streamed(client: openai.OpenAI) -> Any:
    with client.chat.completions.stream(**OFFERED) as stream:
        return stream.get_final_completion().choices[0].message


def parsed_by_client(client: openai.OpenAI) -> Any:
    tools = [openai.pydantic_function_tool(Area, name="area")]
    return client.chat.completions.parse(**{**OFFERED, "tools": tools}, tool_choice="required").choices[0].message


@pytest.mark.parametrize("get", [accumulated, streamed, parsed_by_client])
def test_a_call_can_be_sent_back_as_openais_client_has_it(client: openai.OpenAI, get: Any) -> None:
    message = get(client)
    result = {"role": "tool", "tool_call_id": "1", "content": "12"}
    for sent in [message] if isinstance(message, dict) else [message, message.model_dump()]:
        messages: Any = [*ASK, sent, result]
        assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1).choices


def test_without_leave_nothing_is_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[AREA_TOOL], tool_choice="none", temperature=0
    )
    assert answer.choices[0].message.content == COPIED
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "volume"}}}, "tool_choice"),
        ({"tools": [with_parameters({"type": "array"})], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [with_parameters({"properties": {"a": {"type": "array", "uniqueItems": True}}})],
          "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [], "tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(client: openai.OpenAI, options: Any, field: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": MODEL, "messages": ASK, "tools": [AREA_TOOL], **options})
    assert refused.value.param == field


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "area"}}, "none"])
def test_one_call_at_most_can_be_asked_for_where_that_is_certain(client: openai.OpenAI, choice: Any) -> None:
    options: Any = {"tools": [AREA_TOOL], "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0}
    message = client.chat.completions.create(model=MODEL, messages=ASK, **options).choices[0].message
    assert len(message.tool_calls or ()) == (0 if choice == "none" else 1)


def test_a_model_without_tools_refuses_them(served: Served) -> None:
    with served.client() as plain, pytest.raises(openai.BadRequestError) as refused:
        plain.chat.completions.create(model=MODEL, messages=ASK, tools=[AREA_TOOL])  # type: ignore[list-item]
    assert refused.value.param == "tools"


STRICT = {
    "type": "function",
    "function": {
        "name": "volume",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"box": {"$ref": "#/$defs/Box"}},
            "required": ["box"],
            "additionalProperties": False,
            "$defs": {
                "Box": {
                    "type": "object",
                    "properties": {"height": {"enum": [1, 2]}, "inner": {"$ref": "#/$defs/Unit"}},
                    "required": ["height", "inner"],
                    "additionalProperties": False,
                },
                "Unit": {"enum": ["cm", "inch"]},
            },
        },
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "volume"}}], ids=str)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_call_that_is_demanded_is_made_and_keeps_to_its_parameters(
    client: openai.OpenAI, choice: Any, temperature: float
) -> None:
    tools = [STRICT] if choice == "required" else [AREA_TOOL, STRICT]
    answer: Any = client.chat.completions.create(
        model=MODEL, messages=user("Hello."), tools=tools, tool_choice=choice, temperature=temperature, seed=1,
        max_tokens=300,
    )  # fmt: skip
    message = answer.choices[0].message
    assert message.content is None
    (call,) = message.tool_calls
    assert call.function.name == "volume"
    (box,) = json.loads(call.function.arguments).values()
    assert (set(box), box["height"] in (1, 2), box["inner"] in ("cm", "inch")) == ({"height", "inner"}, True, True)
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        (None, [{}]),
        ({"properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False},
         [{"n": 1}, {"n": 2}]),
        ({"type": ["object", "null"], "maxProperties": 0}, [{}]),
        ({"$defs": {"a": {"enum": [{"n": 3}]}}, "$ref": "#/$defs/a"}, [{"n": 3}]),
        ({"properties": {"s": {"const": f"see {END} \"here\" {END}"}}, "required": ["s"],
          "additionalProperties": False}, [{"s": f"see {END} \"here\" {END}"}]),
    ],
    ids=str,
)  # fmt: skip
def test_the_arguments_of_a_demanded_call_are_an_object(
    client: openai.OpenAI, parameters: Any, arguments: Any, temperature: float
) -> None:
    answer: Any = client.chat.completions.create(
        model=MODEL, messages=user("Hello."), tools=[with_parameters(parameters)], tool_choice="required",
        temperature=temperature, seed=1, max_tokens=300,
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) in arguments


def with_call(arguments: str) -> Any:
    call = {"id": "1", "type": "function", "function": {"name": "area", "arguments": arguments}}
    return [*ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "12"}]


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": "\\ud83d"}', '{"\\ud83d": 1}'])
def test_arguments_that_json_in_utf_8_cannot_hold_are_refused(client: openai.OpenAI, arguments: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=with_call(arguments), tools=[AREA_TOOL])  # type: ignore[list-item]
    assert refused.value.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("arguments", ["{", "[]", "null", "3", "text", '"text"'])
def test_arguments_that_are_no_object_are_said_to_be_so(client: openai.OpenAI, arguments: str) -> None:
    with pytest.raises(openai.BadRequestError, match=r"arguments: it must be a JSON object\."):
        client.chat.completions.create(model=MODEL, messages=with_call(arguments), tools=[AREA_TOOL])  # type: ignore[list-item]


def test_no_arguments_are_an_empty_object(client: openai.OpenAI) -> None:
    lengths = set()
    for arguments in ("{}", "", " \n"):
        answer = client.chat.completions.create(model=MODEL, messages=with_call(arguments), max_tokens=1)
        assert answer.usage is not None
        lengths.add(answer.usage.prompt_tokens)
    assert len(lengths) == 1


def test_a_demanded_call_is_one_of_those_offered(client: openai.OpenAI) -> None:
    names = set()
    for seed in range(6):
        answer: Any = client.chat.completions.create(
            model=MODEL, messages=user("Hello."), tools=[STRICT, {**STRICT, "function": {**STRICT["function"],
            "name": "size"}}], tool_choice="required", temperature=2, seed=seed, max_tokens=300,
        )  # fmt: skip
        names.add(answer.choices[0].message.tool_calls[0].function.name)
    assert names <= {"volume", "size"}


def test_a_bare_call_can_be_demanded_too(served: Served) -> None:
    structure = one_call({0: ("f", {"enum": [{}]})}, Llama3JsonToolParser)
    options = {"structured_output_config": structure, "max_new_tokens": 60}
    text = str(served.pipeline.generate("Hello.", **options))
    assert parsed(Llama3JsonToolParser(), [text]) == ("", [("f", {})])
