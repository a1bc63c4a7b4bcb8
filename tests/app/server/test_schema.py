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
