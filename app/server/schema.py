"""Request bodies: the supported fields of OpenAI's API, and extensions. Unknown fields must be null or missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from outrider.pipelines.config import Acceptance, Mode

from .fields import MOST_MESSAGES, MOST_TOOLS, NO_OTHER, Biases, JsonObject, Prompts, Stops, Strict, Text, modest

SEEDS = 2**63  # OpenAI's seeds are signed 64-bit numbers


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: Annotated[Literal[False] | None, NO_OTHER] = None


class GenerationRequest(Strict):
    """Fields of both endpoints. A field that is missing or null takes the model's default."""

    model: Text
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1, le=128)
    stop: Stops | None = None
    seed: int | None = Field(None, ge=0, lt=SEEDS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: Biases | None = Field(None, description="Values to add to the logits, by token id.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Text | None = None

    speculation: Mode | None = Field(
        None, description="Drafting mode. It changes the speed, not the tokens, unless acceptance is lossy."
    )
    acceptance: Acceptance | None = Field(
        None, description="The rule by which drafted tokens are kept. All but exact are lossy: drafts change the text."
    )
    typical_epsilon: float | None = Field(None, gt=0, le=1, description="Of acceptance typical; 0.09 by default.")
    typical_delta: float | None = Field(None, gt=0, le=1, description="Of acceptance typical; 0.3 by default.")
    rollback_threshold: float | None = Field(None, ge=0, description="Of acceptance threshold, in nats; 2 by default.")
    top_k: int | None = Field(None, ge=1)
    min_p: float | None = Field(None, ge=0, lt=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)

    @field_validator("stream_options")
    @classmethod
    def _are_for_streams(cls, options: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if options is not None and not info.data.get("stream"):
            raise ValueError("they apply to streams only: leave them out, or set stream to true.")
        return options

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def stops(self) -> frozenset[str]:
        return frozenset([self.stop] if isinstance(self.stop, str) else self.stop or ())


class TextPart(Strict):
    type: Literal["text"]
    text: Text


Content: TypeAlias = Text | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)]


class FunctionCall(Strict):
    """`parsed_arguments` is ignored: OpenAI's clients add it."""

    name: Text
    arguments: Text = Field(description="A JSON object, as text; an empty text is an empty object.")
    parsed_arguments: Any = None

    @property
    def parsed(self) -> dict[str, Any]:
        """The parsed arguments. Raises ValueError if they are not a JSON object, or too deep or too large."""
        try:
            arguments = json.loads(self.arguments) if self.arguments.strip() else {}
        except ValueError:
            arguments = None
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        if not isinstance(arguments, dict):
            raise ValueError("it must be a JSON object")
        modest(arguments)
        return arguments


class ToolCall(Strict):
    """`index` is ignored: the deltas of a stream have it."""

    id: Text
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class _Message(Strict):
    name: Text | None = None


class SystemMessage(_Message):
    role: Literal["system"]
    content: Content


class DeveloperMessage(_Message):
    role: Literal["developer"]
    content: Content


class UserMessage(_Message):
    role: Literal["user"]
    content: Content


class AssistantMessage(_Message):
    """`refusal` and the fields below it are accepted empty, since OpenAI's clients send answers back with them, and
    `parsed` is ignored."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: Text | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    parsed: Any = None


class ToolMessage(_Message):
    role: Literal["tool"]
    content: Content
    tool_call_id: Text


Message: TypeAlias = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class Function(Strict):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = Field(None, description="True has the arguments of every call follow `parameters`.")


class Tool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: Text


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


class TextFormat(Strict):
    type: Literal["text"]


class ObjectFormat(Strict):
    type: Literal["json_object"]


class JsonSchema(Strict):
    """The answer always follows the schema, even if `strict` is false."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    schema_: JsonObject = Field(alias="schema")
    strict: bool | None = None


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


RequestedFormat: TypeAlias = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class ChatRequest(GenerationRequest):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    store: Annotated[Literal[False] | None, NO_OTHER] = None
    service_tier: Annotated[Literal["auto", "default"] | None, NO_OTHER] = None
    modalities: Annotated[Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None, NO_OTHER] = None
    response_format: RequestedFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, num_top: int | None, info: ValidationInfo) -> int | None:
        if num_top is not None and not info.data.get("logprobs"):
            raise ValueError("it requires logprobs: set that to true as well.")
        return num_top

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report at each position; None reports no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @field_validator("max_completion_tokens")
    @classmethod
    def _is_the_same_limit(cls, limit: int | None, info: ValidationInfo) -> int | None:
        if limit is not None and info.data.get("max_tokens") not in (None, limit):
            raise ValueError("it means the same as max_tokens, and the values differ: give one of them.")
        return limit


class CompletionRequest(GenerationRequest):
    """The body of /v1/completions."""

    prompt: Prompts
    echo: Annotated[Literal[False] | None, NO_OTHER] = None
    suffix: Annotated[Literal[""] | None, NO_OTHER] = None
    best_of: Annotated[Literal[1] | None, NO_OTHER] = None
    logprobs: int | None = Field(None, ge=0, le=5)

    @property
    def num_logprobs(self) -> int | None:
        """As in `ChatRequest`."""
        return self.logprobs

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Texts or lists of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt
