"""What is checked of a request before anything is done for it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from outrider.app.server.fields import MOST_MESSAGES
from outrider.app.server.schema import ChatRequest, CompletionRequest

MANY = 20_000
UNKNOWN = {str(i): 1 for i in range(MANY)}
TEXT = {"type": "text", "text": "x"}


def test_a_conversation_has_a_bounded_number_of_messages() -> None:
    messages = [{"role": "user", "content": "x"}] * MOST_MESSAGES
    assert len(ChatRequest.model_validate({"model": "m", "messages": messages}).messages) == MOST_MESSAGES
    with pytest.raises(ValidationError, match="at most 2000"):
        ChatRequest.model_validate({"model": "m", "messages": messages * 2})


@pytest.mark.parametrize("place", ["body", "options", "message", "part", "call", "function"])
def test_an_unknown_field_is_refused_unless_it_is_null(place: str) -> None:
    function: dict[str, Any] = {"name": "f", "arguments": "{}"}
    call: dict[str, Any] = {"id": "1", "function": function}
    part: dict[str, Any] = {**TEXT}
    message: dict[str, Any] = {"role": "assistant", "content": [part], "tool_calls": [call]}
    options: dict[str, Any] = {"include_usage": True}
    body: dict[str, Any] = {"model": "m", "messages": [message], "stream": True, "stream_options": options}
    places = {"body": body, "options": options, "message": message, "part": part, "call": call, "function": function}
    places[place]["extra"] = None
    ChatRequest.model_validate(body)
    places[place]["extra"] = 1
    with pytest.raises(ValidationError, match="extra"):
        ChatRequest.model_validate(body)


@pytest.mark.parametrize(
    "body",
    [
        {"best_of": 1}, {"best_of": None}, {"suffix": ""}, {"suffix": None}, {"echo": False}, {"metadata": None},
        {"reasoning_effort": None}, {"service_tier": "auto"}, {"service_tier": "default"}, {"modalities": ["text"]},
        {"store": False}, {"stream": True, "stream_options": {"include_obfuscation": False}},
    ],
    ids=str,
)  # fmt: skip
def test_what_asks_for_nothing_is_accepted(body: dict[str, Any]) -> None:
    kind = CompletionRequest if {"best_of", "suffix", "echo"} & body.keys() else ChatRequest
    sound = {"prompt": "x"} if kind is CompletionRequest else {"messages": [{"role": "user", "content": "x"}]}
    kind.model_validate({"model": "m", **sound, **body})


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [1] * MANY},
        {"messages": [{"role": "king"}] * MANY},
        {"messages": [{"role": "user", "content": [5] * MANY}]},
        {"messages": [{"role": "user", "content": "x", **UNKNOWN}]},
        {"messages": [{"role": "user", "content": [{**TEXT, **UNKNOWN}]}]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [5] * MANY}]},
        {"tools": [5] * MANY},
        {"stop": [5] * MANY},
        {"stop": [""] * MANY},
        {"logit_bias": {f"x{i}": 1 for i in range(MANY)}},
        UNKNOWN,
        {"prompt": [1, *["x"] * MANY]},
        {"prompt": ["x", *[1] * MANY]},
        {"prompt": [[1], *["x"] * MANY]},
        {"prompt": [["x"] * MANY] * 3},
    ],
    ids=lambda body: str(body)[:40],
)
def test_of_many_mistakes_few_are_told(body: dict[str, Any]) -> None:
    """A body of eight MiB would give millions of errors, which take minutes of the loop that serves everybody."""
    kind = CompletionRequest if "prompt" in body else ChatRequest
    sound = {"prompt": "x"} if "prompt" in body else {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(ValidationError) as refused:
        kind.model_validate({"model": "m", **sound, **body})
    assert refused.value.error_count() <= 3
