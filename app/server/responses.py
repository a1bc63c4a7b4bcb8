"""Response bodies of OpenAI's API, extended by `seed`, `speculation` and `reasoning_content`.

Times are Unix times in seconds.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class SpeculationFigures(BaseModel):
    """Totals over all answers. A pass that several answers share counts once for each.

    acceptance: the rule by which drafted tokens were kept. lossy: whether drafts may have changed the text, as they may
        under every rule but "exact".
    """

    mode: str
    acceptance: str
    lossy: bool
    passes: int
    drafted: int
    accepted: int
    drafted_by: dict[str, int]
    accepted_by: dict[str, int]


class Envelope(BaseModel):
    """Fields of all responses. A request with the same `seed` gets the same answer, unless `acceptance` is lossy."""

    id: str
    created: int
    model: str
    seed: int


class CalledFunction(BaseModel):
    name: str
    arguments: str


class CalledTool(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class TopLogprob(BaseModel):
    """`logprob` is under the model's own distribution, before temperature and other options."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatTokenLogprob]
    refusal: None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChatMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[CalledTool] | None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(Envelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    speculation: SpeculationFigures


class CalledToolDelta(CalledTool):
    index: int


class ChatDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CalledToolDelta] | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatChunk(Envelope):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    speculation: SpeculationFigures | None = None


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(Envelope):
    """A completion, or a chunk of one; of the chunks, only the last has `usage` and `speculation`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | None = None
    speculation: SpeculationFigures | None = None


class Model(BaseModel):
    """`max_context`: tokens of prompt and answer together. `modes`: the possible values of `speculation`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_context: int
    modes: list[str]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Health(BaseModel):
    status: Literal["ok", "loading", "warming up", "failed"]
    exact: bool | None  # whether the same seed gives the same text in every drafting mode; None while it is not known
    reason: str | None = None  # only if the status is "failed"
