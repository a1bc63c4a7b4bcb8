"""/v1/chat/completions: answers to a conversation, with reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.pipelines import Piece, TokenLogprobs

from ..reasoning import NewParser, ReasoningParser
from .logprobs import LogprobsFormatter
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
)
from .tools import Call, Parsed, ToolParser


class ChatReply(Reply):
    id_prefix = "chatcmpl"

    def __init__(self, terms: Terms, tool_parser: type[ToolParser], reasoning_parser: NewParser) -> None:
        super().__init__(terms)
        self._choices = [_Choice(tool_parser(), reasoning_parser(), terms.logprobs) for _ in range(self.num_answers)]

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

    def _take(self, index: int, piece: Piece) -> Iterator[ChatChunk]:
        choice = self._choices[index]
        num_calls = len(choice.calls)
        reasoning, parsed = choice.take(piece)
        delta = ChatDelta()
        if reasoning:
            delta.reasoning_content = reasoning
        if parsed.text:
            delta.content = parsed.text
        if parsed.calls:
            delta.tool_calls = [
                CalledToolDelta(index=number, **_called(call).model_dump())
                for number, call in enumerate(parsed.calls, num_calls)
            ]
        if delta.model_fields_set or piece.logprobs or choice.finish is not None:
            chunk = self._chunk(index, delta, choice.finish)
            if self.terms.logprobs is not None:
                chunk.choices[0].logprobs = self.terms.logprobs.for_chat(piece.logprobs)
            yield chunk

    def _empty_chunk(self) -> ChatChunk:
        return self._chunk_of([])

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

    def __init__(
        self, tool_parser: ToolParser, reasoning_parser: ReasoningParser, logprobs: LogprobsFormatter | None
    ) -> None:
        self._tool_parser = tool_parser
        self._reasoning_parser = reasoning_parser
        self._logprobs = logprobs
        self._tokens: list[TokenLogprobs] = []
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self.calls: list[Call] = []
        self.finish: Finish | None = None

    def take(self, piece: Piece) -> tuple[str, Parsed]:
        """The reasoning and the rest of what the next piece makes certain."""
        ends = piece.finish_reason is not None
        split = self._reasoning_parser.parse(piece.text, ends)
        parsed = self._tool_parser.parse(split.text, ends)
        self._reasoning.append(split.reasoning)
        self._texts.append(parsed.text)
        self._tokens += piece.logprobs
        self.calls += parsed.calls
        if ends:
            self.finish = "length" if piece.finish_reason == "length" else "tool_calls" if self.calls else "stop"
        return split.reasoning, parsed

    def whole(self, index: int) -> ChatChoice:
        assert self.finish is not None
        text, reasoning = "".join(self._texts), "".join(self._reasoning)
        is_empty = (self.calls or reasoning) and not text.strip()
        message = ChatMessage(role="assistant", content=None if is_empty else text, refusal=None)
        if reasoning:
            message.reasoning_content = reasoning
        if self.calls:
            message.tool_calls = [_called(call) for call in self.calls]
        logprobs = self._logprobs.for_chat(self._tokens) if self._logprobs else None
        return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=self.finish)


def _called(call: Call) -> CalledTool:
    return CalledTool(id=call.id, type="function", function=CalledFunction(name=call.name, arguments=call.arguments))
