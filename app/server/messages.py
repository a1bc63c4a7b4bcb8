"""Converts the messages of a request for chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino_genai

from .errors import ApiError
from .schema import AssistantMessage, Content, Message, Tool, ToolMessage


def history_of(messages: Sequence[Message], tools: Sequence[Tool]) -> openvino_genai.ChatHistory:
    """The conversation with the tools that the model may call. Raises ApiError for arguments that cannot be parsed."""
    history = openvino_genai.ChatHistory([_message(i, message) for i, message in enumerate(messages)])
    if tools:
        history.set_tools([tool.model_dump(exclude_none=True) for tool in tools])
    return history


def _message(index: int, message: Message) -> dict[str, Any]:
    """A message for chat templates: text parts joined, arguments of tool calls parsed."""
    role = "system" if message.role == "developer" else message.role  # chat templates know the older name only
    result: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if message.name is not None:
        result["name"] = message.name
    if isinstance(message, ToolMessage):
        result["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage) and message.reasoning_content:
        result["reasoning_content"] = message.reasoning_content
    if isinstance(message, AssistantMessage) and message.tool_calls:
        calls = []
        for number, call in enumerate(message.tool_calls):
            try:
                function = {"name": call.function.name, "arguments": call.function.parsed}
            except ValueError as error:
                field = f"messages[{index}].tool_calls[{number}].function.arguments"
                raise ApiError(400, f"{field}: {error}.", field, "invalid_value") from None
            calls.append({"id": call.id, "type": "function", "function": function})
        result["tool_calls"] = calls
    return result


def _text(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)
