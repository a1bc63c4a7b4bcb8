"""Reasoning: what a model writes between its tags arrives apart from its answer, however the text is cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from outrider.app import reasoning
from outrider.app.reasoning import (
    ReasoningParser,
    answer_without_reasoning,
    opening_of,
    reasoning_parser_for,
    without_reasoning,
)
from outrider.app.server.messages import history_of
from outrider.app.server.schema import AssistantMessage
from outrider.pipelines import InvalidOption, LLMPipeline

from .serving import AREA, MODEL, REPEAT, Served, running, user

WRITTEN = {
    "<think>\nLet me see.\n\nIt is 4.\n</think>\n\nFour.\n": ("Let me see.\n\nIt is 4.", "Four.\n"),
    "<think>\n\n</think>\n\nFour.": ("", "Four."),
    "\n <think>a < b</think>Four.": ("a < b", "Four."),
    "<think>cut off </thi": ("cut off </thi", ""),
    "<think>cut off": ("cut off", ""),
    "<think></think>": ("", ""),
    "<think>a <think> b</think> c</think> d": ("a <think> b", "c</think> d"),
    "Tags are <think>such</think>.": ("", "Tags are <think>such</think>."),
    "  no reasoning  \n": ("", "  no reasoning  \n"),
    "<thi": ("", "<thi"),
    "": ("", ""),
}


def parsed(parser: ReasoningParser, parts: list[str]) -> tuple[str, str]:
    found = [parser.parse(part, i == len(parts) - 1) for i, part in enumerate(parts)]
    return "".join(part.reasoning for part in found), "".join(part.text for part in found)


def cuts(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.sample(range(len(text) + 1), rng.randint(0, min(6, len(text)))))
    return [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("text", WRITTEN, ids=repr)
def test_reasoning_is_found_however_the_text_is_cut(text: str) -> None:
    rng = random.Random(text)
    for parts in ([text], list(text) or [""], [*text, ""], *(cuts(text, rng) for _ in range(50))):
        assert parsed(ReasoningParser(), parts) == WRITTEN[text], parts


def test_an_answer_can_begin_within_the_reasoning() -> None:
    assert parsed(ReasoningParser("reasoning"), ["\nIt is ", "4.\n</thi", "nk>\n\nFour."]) == ("It is 4.", "Four.")


def test_reasoning_is_told_at_once() -> None:
    parser = ReasoningParser()
    assert parser.parse("<think>\nLet me ", False).reasoning == "Let me"
    assert parser.parse("see <", False).reasoning == " see"
    assert parser.parse("b>", False).reasoning == " <b>"
    assert parser.parse("</think>\n\n", False) == reasoning.Split()
    assert parser.parse("Four", False).text == "Four"


class Tokens:
    """A tokenizer with the tags among its tokens, or without, and a template that ends with `prompt_end`."""

    def __init__(self, *tags: str, prompt_end: str | None = "<|assistant|>\n") -> None:
        self.vocabulary = {tag.encode(): place for place, tag in enumerate(tags)}
        self._prompt_end = prompt_end

    def apply_chat_template(self, messages: list[dict[str, str]]) -> str:
        if self._prompt_end is None:
            raise InvalidOption("no system message")
        return f"<|user|>{messages[0]['content']}{self._prompt_end}"


TAGS = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (Tokens(*TAGS), ("plan", "end</think>")),
        (Tokens(*TAGS, prompt_end=None), ("plan", "end</think>")),
        (Tokens(*TAGS, prompt_end="<think>\n\n</think>\n\n"), ("plan", "end</think>")),
        (Tokens(*TAGS, prompt_end="<|assistant|>\n<think>\n"), ("<think>plan", "end</think>")),
        (Tokens("<think>"), ("", "<think>plan</think>end</think>")),
        (Tokens(), ("", "<think>plan</think>end</think>")),
    ],
)
def test_vocabulary_and_template_tell_how_a_model_reasons(tokens: Any, expected: tuple[str, str]) -> None:
    new_parser = reasoning_parser_for(tokens)
    for _ in range(2):
        assert parsed(new_parser(), ["<think>plan</think>end</think>"]) == expected


@pytest.mark.parametrize(
    ("tokens", "opening"),
    [
        (Tokens(*TAGS), ""),
        (Tokens(*TAGS, prompt_end=None), ""),
        (Tokens(*TAGS, prompt_end="<think>\n\n</think>\n\n"), ""),
        (Tokens(*TAGS, prompt_end="<|assistant|><think>\n"), "<think>\n"),
        (Tokens(prompt_end="<think>\n"), None),
    ],
)
def test_the_template_tells_what_answers_begin_with(tokens: Any, opening: str | None) -> None:
    assert opening_of(tokens) == opening


def test_an_answer_is_told_from_its_reasoning() -> None:
    assert answer_without_reasoning("<think>\nIt is 4.\n</think>\n\nFour.") == "Four."
    assert answer_without_reasoning("Four, I <think>.") == "Four, I <think>."
    assert answer_without_reasoning("<think>\nIt is") == "<think>\nIt is"


def test_the_embedded_pair_has_no_tags(pipeline: LLMPipeline) -> None:
    assert reasoning_parser_for(pipeline.tokenizer) is without_reasoning


@pytest.fixture
def reasoning_server(pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The embedded pair with tokens of its own for tags: AREA reasons about the parameters, and its result answers."""
    monkeypatch.setattr(reasoning, "OPEN", "def")
    monkeypatch.setattr(reasoning, "CLOSE", "return")
    with running(pipeline) as served:
        yield served


def test_the_server_tells_the_reasoning_apart(reasoning_server: Served) -> None:
    options: Any = {"model": MODEL, "messages": user(REPEAT), "temperature": 0, "n": 1}
    with reasoning_server.client() as client:
        (choice,) = client.chat.completions.create(**options).choices
        deltas: list[Any] = [chunk.choices[0].delta for chunk in client.chat.completions.create(**options, stream=True)]
        completion = client.completions.create(model=MODEL, prompt=f"{AREA}\n\n\ndef", temperature=0, max_tokens=8)
    message: Any = choice.message
    assert (message.reasoning_content, message.content) == ("area(width, height):", "width * height")
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert not hasattr(completion.choices[0], "reasoning_content")


def test_an_answer_that_is_cut_off_while_it_reasons_has_no_content(reasoning_server: Served) -> None:
    with reasoning_server.client() as client:
        answer: Any = client.chat.completions.create(
            model=MODEL, messages=user(REPEAT), temperature=0, max_tokens=4
        ).choices[0]
    assert answer.finish_reason == "length"
    assert answer.message.content is None
    assert f"def {answer.message.reasoning_content}" == AREA[: len(answer.message.reasoning_content) + 4]


def test_an_answer_with_a_structure_is_all_content(reasoning_server: Served) -> None:
    schema = {"type": "object", "properties": {"return": {"type": "boolean"}}, "required": ["return"]}
    with reasoning_server.client() as client:
        answer: Any = client.chat.completions.create(
            model=MODEL, messages=user(REPEAT), max_tokens=60, seed=1,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        ).choices[0]  # fmt: skip
    assert '"return"' in answer.message.content
    assert not hasattr(answer.message, "reasoning_content")


def test_reasoning_that_is_sent_back_reaches_the_chat_template(client: openai.OpenAI) -> None:
    message = AssistantMessage(role="assistant", content="Four.", reasoning_content="It is 4.")
    (told,) = history_of([message], ()).get_messages()
    assert told == {"role": "assistant", "content": "Four.", "reasoning_content": "It is 4."}
    sent: Any = [*user("2 + 2?"), message.model_dump(exclude_none=True), *user(REPEAT)]
    assert client.chat.completions.create(model=MODEL, messages=sent, max_tokens=2).choices
