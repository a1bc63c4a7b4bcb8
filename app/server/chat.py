"""/v1/chat/completions: conversations and tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openvino_genai

from outrider.pipelines import Piece

from .errors import ApiError
from .reply import Reply
from .responses import (
    CalledFunction,
    CalledTool,
    CalledToolDelta,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Finish,
    SpeculationFigures,
    Usage,
)
from .schema import AssistantMessage, ChatRequest, Content, Message, ToolMessage
from .tools import Call, Parsed, Reader, TextReader, reader_for


def history_of(request: ChatRequest, template: str) -> openvino_genai.ChatHistory:
    """The conversation as the model's chat template takes it. Raises ApiError."""
    history = openvino_genai.ChatHistory([_message(i, message) for i, message in enumerate(request.messages)])
    if reader_of(request, template) is not TextReader:
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
        history.set_tools(tools)
    return history


def reader_of(request: ChatRequest, template: str) -> type[Reader]:
    """Who reads the answers. Raises ApiError where tools are offered to a model that cannot call them."""
    if not request.tools and request.tool_choice is not None:
        raise ApiError(400, "tool_choice chooses among tools: give tools as well, or leave it out.", "tool_choice")
    if not request.tools or request.tool_choice == "none":
        return TextReader
    reader = reader_for(template)
    if reader is None:
        raise ApiError(
            400, "tools cannot be offered: the chat template of this model has none that could be read back.", "tools"
        )
    return reader


class ChatReply(Reply):
    id_prefix = "chatcmpl"

    def __init__(self, *arguments: Any, reader: type[Reader]) -> None:
        super().__init__(*arguments)
        self._choices = [_Choice(reader()) for _ in self._stats]

    def first_chunks(self) -> Iterator[ChatChunk]:
        for index in range(len(self._choices)):
            yield self._chunk(index, ChatDelta(role="assistant", content=""), None)

    def whole(self) -> ChatCompletion:
        return ChatCompletion(
            id=self.id,
            object="chat.completion",
            created=self.created,
            model=self.model,
            seed=self.seed,
            choices=[choice.whole(index) for index, choice in enumerate(self._choices)],
            usage=self.usage,
            speculation=self.figures,
        )

    def _take(self, index: int, piece: Piece, figures: SpeculationFigures | None) -> Iterator[ChatChunk]:
        choice = self._choices[index]
        num_calls = len(choice.calls)
        parsed = choice.take(piece)
        delta = ChatDelta()
        if parsed.text:
            delta.content = parsed.text
        if parsed.calls:
            delta.tool_calls = [
                CalledToolDelta(index=number, **_called(call).model_dump())
                for number, call in enumerate(parsed.calls, num_calls)
            ]
        if delta.model_fields_set or choice.finish is not None:
            chunk = self._chunk(index, delta, choice.finish)
            if figures is not None:
                chunk.speculation = figures
            yield chunk

    def _figures_chunk(self, usage: Usage, figures: SpeculationFigures) -> ChatChunk:
        return ChatChunk(
            id=self.id, object="chat.completion.chunk", created=self.created, model=self.model, seed=self.seed,
            choices=[], usage=usage, speculation=figures,
        )  # fmt: skip

    def _chunk(self, index: int, delta: ChatDelta, finish: Finish | None) -> ChatChunk:
        choice = ChatChunkChoice(index=index, delta=delta, finish_reason=finish)
        return ChatChunk(
            id=self.id, object="chat.completion.chunk", created=self.created, model=self.model, seed=self.seed,
            choices=[choice],
        )  # fmt: skip


class _Choice:
    """One answer so far."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._texts: list[str] = []
        self.calls: list[Call] = []
        self.finish: Finish | None = None

    def take(self, piece: Piece) -> Parsed:
        ends = piece.finish_reason is not None
        parsed = self._reader.read(piece.text, ends)
        self._texts.append(parsed.text)
        self.calls += parsed.calls
        if ends:
            self.finish = "length" if piece.finish_reason == "length" else "tool_calls" if self.calls else "stop"
        return parsed

    def whole(self, index: int) -> ChatChoice:
        assert self.finish is not None
        text = "".join(self._texts)
        message = ChatMessage(role="assistant", content=None if self.calls and not text.strip() else text, refusal=None)
        if self.calls:
            message.tool_calls = [_called(call) for call in self.calls]
        return ChatChoice(index=index, message=message, finish_reason=self.finish)


def _called(call: Call) -> CalledTool:
    return CalledTool(id=call.id, type="function", function=CalledFunction(name=call.name, arguments=call.arguments))


def _message(index: int, message: Message) -> dict[str, Any]:
    """A message as templates take it: its text in one string, the arguments of calls as objects."""
    role = "system" if message.role == "developer" else message.role  # templates know the older name
    result: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if message.name is not None:
        result["name"] = message.name
    if isinstance(message, ToolMessage):
        result["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage) and message.tool_calls:
        calls = []
        for number, call in enumerate(message.tool_calls):
            try:
                function = {"name": call.function.name, "arguments": call.function.parsed}
            except ValueError:
                field = f"messages[{index}].tool_calls[{number}].function.arguments"
                raise ApiError(400, f"{field} is no JSON object: send what the model wrote.", field) from None
            calls.append({"id": call.id, "type": "function", "function": function})
        result["tool_calls"] = calls
    return result


def _text(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)
