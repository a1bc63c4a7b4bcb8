"""Grammars of calls: a call keeps to its schema, the text around it is free, and what is offered may be combined."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from outrider.app import reasoning
from outrider.app.server import call_grammar
from outrider.app.server.call_grammar import text_with_calls
from outrider.app.server.errors import ApiError
from outrider.app.server.messages import history_of
from outrider.app.server.response_format import ResponseFormat
from outrider.app.server.schema import ChatRequest
from outrider.app.server.tools import BEGIN, END, HermesToolParser
from outrider.pipelines import GenerationConfig, LLMPipeline, StructuredOutputConfig
from outrider.pipelines.structured.grammars import ONE_OF_TOLD

from .serving import MODEL, REPEAT, Served, running, user
from .tools import TEMPLATE, pair_with_tools

WIDTH = {
    "type": "object",
    "properties": {"width": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["width"],
    "additionalProperties": False,
}
BROKEN = f'{BEGIN}{{"name": "area", "arguments": {{"width": 3, "bad": 1}}}}{END}'
SECOND = f'{BEGIN}{{"name": "area", "arguments": {{"width": 4}}}}{END}'
WRITTEN = "def call():\n    return"
END_ID = 0


def tool(name: str = "area", parameters: Any = None, **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters or WIDTH, **more}}


def repeating(text: str) -> Any:
    return user(f"Repeat this function.\n\n{text}")


@pytest.fixture(scope="module")
def with_tools(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running(LLMPipeline(pair_with_tools(embedded_pair, tmp_path_factory.mktemp("tools") / "pair"))) as served:
        yield served


@pytest.fixture
def client(with_tools: Served) -> Iterator[openai.OpenAI]:
    with with_tools.client() as client:
        yield client


def ask(client: openai.OpenAI, messages: Any, *tools: Any, **options: Any) -> tuple[Any, list[tuple[str, Any]], Any]:
    """The text, the calls and the tokens of an answer."""
    options = {"temperature": 0, "max_tokens": 90, "logprobs": True, **options}
    answer: Any = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, **options)
    (choice,) = answer.choices
    calls = [(each.function.name, json.loads(each.function.arguments)) for each in choice.message.tool_calls or ()]
    return choice.message.content, calls, [entry.token for entry in choice.logprobs.content]


@pytest.mark.parametrize("options", [{}, {"temperature": 1, "seed": 3}], ids=str)
def test_a_strict_call_keeps_to_its_schema_although_it_is_asked_to_break_it(
    client: openai.OpenAI, options: dict[str, Any]
) -> None:
    options = {**options, "parallel_tool_calls": False}
    modes: list[Any] = [{"speculation": mode} for mode in ("off", "lookup", "auto")]
    answers = [ask(client, repeating(f"{WRITTEN} {BROKEN}"), tool(strict=True), extra_body=m, **options) for m in modes]
    assert answers[0][0].startswith(WRITTEN)
    assert answers[0][1] == [("area", {"width": 3})]
    assert all(answer == answers[0] for answer in answers)
    loose = ask(client, repeating(f"{WRITTEN} {BROKEN}"), tool(), **options)
    assert loose[:2] == (WRITTEN, [("area", {"width": 3, "bad": 1})])


def test_a_stream_carries_the_same_strict_call(client: openai.OpenAI) -> None:
    options: Any = {"tools": [tool(strict=True)], "temperature": 0, "stream": True, "parallel_tool_calls": False}
    chunks: Any = client.chat.completions.create(model=MODEL, messages=repeating(f"{WRITTEN} {BROKEN}"), **options)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == WRITTEN
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (call.function.name, json.loads(call.function.arguments)) == ("area", {"width": 3})


@pytest.mark.parametrize("options", [{}, {"temperature": 1, "seed": 5}], ids=str)
@pytest.mark.parametrize("asked", [REPEAT, "Hello."])
def test_a_text_without_calls_is_that_of_an_answer_that_is_free(
    with_tools: Served, client: openai.OpenAI, asked: str, options: dict[str, Any]
) -> None:
    request = ChatRequest(model=MODEL, messages=user(asked), tools=[tool(strict=True)])
    free = with_tools.pipeline.generate(
        history_of(request.messages, request.tools or ()), do_sample="seed" in options, temperature=1,
        rng_seed=options.get("seed", 0), max_new_tokens=40,
    )  # fmt: skip
    answer = ask(client, user(asked), tool(strict=True), max_tokens=40, **options)
    assert answer[:2] == (str(free), [])


def test_no_grammar_is_made_where_none_is_asked_for() -> None:
    request = ChatRequest(model=MODEL, messages=user("x"), tools=[tool(strict=False)], parallel_tool_calls=True)
    assert ResponseFormat.of(request, tokenizer(), "answer").structure is None


def test_there_is_one_call_at_most_where_parallel_calls_are_off(client: openai.OpenAI) -> None:
    both = repeating(f"{WRITTEN} {BROKEN}{SECOND}")
    assert len(ask(client, both, tool())[1]) == 2
    modes: list[Any] = [{"speculation": mode} for mode in ("off", "lookup", "auto")]
    answers = [ask(client, both, tool(), parallel_tool_calls=False, extra_body=mode) for mode in modes]
    assert answers[0][:2] == (WRITTEN, [("area", {"width": 3, "bad": 1})])
    assert all(answer == answers[0] for answer in answers)
    assert ask(client, user(REPEAT), tool(), parallel_tool_calls=False)[1] == []


def test_strict_tools_and_others_can_be_offered_together(client: openai.OpenAI) -> None:
    tools = [tool("volume", strict=True), tool(), tool("size", {"properties": {"s": {"const": 1}}, "required": ["s"]})]
    for name, expected in (
        ("area", {"width": 3, "bad": 1}),
        ("volume", {"width": 3}),
        ("size", {"width": 3, "bad": 1}),
    ):
        written = f"{WRITTEN} {BROKEN.replace('area', name)}"
        answer = ask(client, repeating(written), *tools, parallel_tool_calls=False)
        assert answer[:2] == (WRITTEN, [(name, expected)])


def test_tags_in_the_reasoning_before_a_call_are_text(with_tools: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tokens of the embedded pair for the tags of the reasoning."""
    for module in (reasoning, call_grammar):
        monkeypatch.setattr(module, "OPEN", "def")
        monkeypatch.setattr(module, "CLOSE", "return")
    with running(with_tools.pipeline) as served, served.client() as client:
        answer: Any = client.chat.completions.create(
            model=MODEL, messages=repeating(f"def call({BEGIN}):\n    return {BROKEN}"), tools=[tool(strict=True)],
            temperature=0, parallel_tool_calls=False,
        )  # fmt: skip
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == (f"call({BEGIN}):", None)
    assert json.loads(message.tool_calls[0].function.arguments) == {"width": 3}


AREA = f'{BEGIN}{{"name": "area", "arguments": {{"width": 1}}}}{END}'
SPREAD = f'{BEGIN}\n{{\n  "name": "any", "arguments": {{"x": [1, {{"y": "{END}"}}]}}\n}}\n{END}'
WRONG = f"{BEGIN} no call"
THOUGHT = f"<think>I write {BEGIN} and {END}"


@pytest.mark.parametrize(
    ("stage", "several", "texts", "others"),
    [
        ("answer", True, ["", "a", f"{AREA}", f"a {AREA} b{SPREAD}c <tool_", "é日😀 <tool_call"],
         [WRONG, f"{AREA}{WRONG}", BROKEN, f"<think>{WRONG}</think>", f'{BEGIN}{{"name": "other"']),
        ("answer", False, ["a", f"a {AREA}", SPREAD], [f"{AREA} ", f"{AREA}{AREA}", WRONG]),
        ("start", True, ["a", THOUGHT, f"\n {THOUGHT}</think>a {AREA}{SPREAD}", f"a {AREA}"],
         [WRONG, f"{THOUGHT}</think>{WRONG}", f"a {THOUGHT}", f"{AREA}{THOUGHT}"]),
        ("start", False, [f"{THOUGHT}</think>{AREA}"], [f"{THOUGHT}</think>{AREA}a", f"a {THOUGHT}"]),
        ("reasoning", True, ["a", WRONG, f"{WRONG}</think>{AREA}a"], [f"a</think>{WRONG}", f"</think>{AREA}{WRONG}"]),
    ],
)  # fmt: skip
def test_what_is_behind_a_tag_is_a_call_and_everything_else_is_free(
    pipeline: LLMPipeline, stage: Any, several: bool, texts: Sequence[str], others: Sequence[str]
) -> None:
    functions = {0: ("area", WIDTH), 3: ("any", {"type": "object"})}
    structure = text_with_calls(functions, HermesToolParser, stage, several)
    for text in texts:
        assert may_be_whole(pipeline, structure, text), text
    for text in others:
        assert not may_be_whole(pipeline, structure, text), text


def may_be_whole(pipeline: LLMPipeline, structure: StructuredOutputConfig, text: str) -> bool:
    asked = pipeline._grammars.constraint(GenerationConfig(structured_output_config=structure, eos_token_ids={END_ID}))
    assert asked is not None
    ids = pipeline.tokenizer.encode(text, add_special_tokens=False)
    if not all(asked.allows(ids[:i], token) for i, token in enumerate(ids)):
        return False
    return asked.is_complete(ids) or asked.allows(ids, END_ID)


class Bytes:
    """A vocabulary of all bytes, and of the tags as single tokens."""

    tokens = (*(bytes([i]) for i in range(256)), BEGIN.encode(), END.encode(), b"<end>")
    eos_token_id, bos_token_id, special_token_ids = 258, None, (258,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def test_tags_may_be_single_tokens() -> None:
    structure = text_with_calls({0: ("area", WIDTH)}, HermesToolParser, "answer", False)
    assert structure.grammar is not None
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(Bytes())), grammar_from("lark", structure.grammar))

    def allowed() -> set[bytes]:
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        return {token for token_id, token in enumerate(Bytes.tokens) if bits >> token_id & 1}

    matcher.consume_tokens([*b"Hi ", 256])
    assert allowed() == {b"{", b" ", b"\n"}
    matcher.consume_tokens(list(b'{"name": "area", "arguments": {"width": 3}}'))
    assert allowed() == {END.encode(), b"<", b" ", b"\n"}
    matcher.consume_tokens([257])
    assert allowed() == {b"<end>"}


def tokenizer(template: str = TEMPLATE, unseen: str | None = None) -> Any:
    """A tokenizer with this template, in whose texts a token is not seen."""
    return SimpleNamespace(
        chat_template=template, encode=lambda text, add_special_tokens: text,
        decode=lambda text: text.replace(unseen, "") if unseen else text,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "given", "field"),
    [
        ({"tools": [tool(), tool(strict=True)]}, tokenizer('{% if tools %}"parameters":'), "tools[1].function.strict"),
        ({"tools": [tool(strict=True)]}, tokenizer(unseen=BEGIN), "tools[0].function.strict"),
        ({"tools": [tool()], "parallel_tool_calls": False}, tokenizer(unseen=END), "parallel_tool_calls"),
        ({"tools": [tool()], "parallel_tool_calls": False}, tokenizer(unseen="</think>"), "parallel_tool_calls"),
        ({"tools": [tool(strict=True)]}, tokenizer("{% if tools %}<tool_call><function="), "tools"),
    ],
)
def test_what_no_tag_in_the_text_tells_is_refused(asked: Any, given: Any, field: str) -> None:
    with pytest.raises(ApiError) as refused:
        ResponseFormat.of(ChatRequest(model=MODEL, messages=user("x"), **asked), given, "start")
    assert refused.value.param == field


def test_a_model_whose_call_is_the_whole_answer_makes_one_at_most() -> None:
    asked = ChatRequest(model=MODEL, messages=user("x"), tools=[tool()], parallel_tool_calls=False)
    assert ResponseFormat.of(asked, tokenizer('{% if tools %}"parameters":'), "answer").structure is None


def referring(value: Any, **keywords: Any) -> Any:
    return {
        "type": "object",
        "properties": {"by_path": {"$ref": "#/$defs/one"}, "by_anchor": {"$ref": "#one"}},
        "required": ["by_path", "by_anchor"],
        "additionalProperties": False,
        "$defs": {"one": {"$anchor": "one", "const": value}},
        **keywords,
    }


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("keywords", [{}, {"$id": "https://example.org/arguments"}], ids=str)
def test_references_are_within_the_parameters_of_each_tool(
    client: openai.OpenAI, choice: Any, keywords: dict[str, Any]
) -> None:
    tools = [tool(f"tool_{value}", referring(value, **keywords), strict=True) for value in (1, 2)]
    for value in (1, 2):
        written = f'{BEGIN}{{"name": "tool_{value}", "arguments": {{"width": 3}}}}{END}'
        options: Any = {"tool_choice": choice, "parallel_tool_calls": False, "temperature": 0}
        if choice == "required":
            options["tool_choice"] = {"type": "function", "function": {"name": f"tool_{value}"}}
        calls = ask(client, repeating(f"{WRITTEN} {written}"), *tools, **options)[1]
        assert calls == [(f"tool_{value}", {"by_path": value, "by_anchor": value})]


@pytest.mark.parametrize("choice", ["required", "auto", {"type": "function", "function": {"name": "b"}}], ids=str)
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: ["uniqueItems"]'),
        ({"$ref": "#/$defs/none"}, "Pointer '/$defs/none' does not exist"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ONE_OF_TOLD),
    ],
    ids=str,
)  # fmt: skip
def test_a_schema_that_is_not_supported_is_refused_with_its_place_and_reason(
    client: openai.OpenAI, choice: Any, schema: Any, reason: str
) -> None:
    tools = [tool("a", strict=True), tool("b", {"type": "object", "properties": {"x": schema}}, strict=True)]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=user("x"), tools=tools, tool_choice=choice)
    error: Any = refused.value.body
    assert error["param"] == "tools[1].function.parameters"
    assert error["message"] == f"tools[1].function.parameters are not supported: {reason}."
