"""/v1/chat/completions: conversations and tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openvino_genai

from outrider.pipelines import Piece, StructuredOutputConfig, TokenLogprobs

from .errors import ApiError
from .likelihood import Likelihood
from .reply import Reply, Terms
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
from .schema import AssistantMessage, ChatRequest, Content, Message, ObjectFormat, TextFormat, ToolMessage
from .tools import Call, Parsed, Reader, TextReader, reader_for

SPACE = r"( |\n {0,16})?"  # between the parts of JSON: without a bound, small models go on with it until max_tokens


def history_of(request: ChatRequest, template: str) -> openvino_genai.ChatHistory:
    """The conversation as the model's chat template takes it. Raises ApiError."""
    history = openvino_genai.ChatHistory([_message(i, message) for i, message in enumerate(request.messages)])
    if reader_of(request, template) is not TextReader:
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
        history.set_tools(tools)
    return history


def structure_of(request: ChatRequest) -> StructuredOutputConfig | None:
    """What the answer has to keep to. Raises ApiError."""
    form = request.response_format
    if form is None or isinstance(form, TextFormat):
        return None
    if request.tools and request.tool_choice != "none":
        raise ApiError(
            400,
            "response_format leaves no room for calls of tools: set tool_choice to none, or leave one of them out.",
            "response_format",
        )
    schema = {"type": "object"} if isinstance(form, ObjectFormat) else form.json_schema.schema_
    return StructuredOutputConfig(json_schema=json.dumps({"x-guidance": {"whitespace_pattern": SPACE}, **schema}))


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

    def __init__(self, terms: Terms, reader: type[Reader]) -> None:
        super().__init__(terms)
        self._choices = [_Choice(reader(), terms.likelihood) for _ in range(self.num_answers)]

    def first_chunks(self) -> Iterator[ChatChunk]:
        for index in range(len(self._choices)):
            yield self._chunk(index, ChatDelta(role="assistant", content=""), None)

    def whole(self) -> ChatCompletion:
        return ChatCompletion(
            id=self.id,
            object="chat.completion",
            created=self.created,
            model=self.terms.model,
            seed=self.terms.seed,
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
        if delta.model_fields_set or piece.logprobs or choice.finish is not None:
            chunk = self._chunk(index, delta, choice.finish)
            if self.terms.likelihood is not None:
                chunk.choices[0].logprobs = self.terms.likelihood.of_chat(piece.logprobs)
            if figures is not None:
                chunk.speculation = figures
            yield chunk

    def _figures_chunk(self, usage: Usage, figures: SpeculationFigures) -> ChatChunk:
        chunk = self._chunk_of([])
        chunk.usage, chunk.speculation = usage, figures
        return chunk

    def _chunk(self, index: int, delta: ChatDelta, finish: Finish | None) -> ChatChunk:
        choice = ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=finish)
        return self._chunk_of([choice])

    def _chunk_of(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            object="chat.completion.chunk",
            created=self.created,
            model=self.terms.model,
            seed=self.terms.seed,
            choices=choices,
        )


class _Choice:
    """One answer so far."""

    def __init__(self, reader: Reader, likelihood: Likelihood | None) -> None:
        self._reader = reader
        self._likelihood = likelihood
        self._tokens: list[TokenLogprobs] = []
        self._texts: list[str] = []
        self.calls: list[Call] = []
        self.finish: Finish | None = None

    def take(self, piece: Piece) -> Parsed:
        ends = piece.finish_reason is not None
        parsed = self._reader.read(piece.text, ends)
        self._texts.append(parsed.text)
        self._tokens += piece.logprobs
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
        logprobs = self._likelihood.of_chat(self._tokens) if self._likelihood else None
        return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=self.finish)


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
