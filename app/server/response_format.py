"""Response format: the tools that an answer may call, and the structure that it has to follow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.pipelines import StructuredOutputConfig
from outrider.pipelines.text.tokenizer import Tokenizer

from ..reasoning import CLOSE, OPEN, Stage
from .call_grammar import SPACE, one_call, parameters_of, text_with_calls
from .errors import ApiError
from .schema import ChatRequest, Function, NamedTool, ObjectFormat, TextFormat, Tool
from .tools import PlainTextParser, ToolParser, tool_parser_for


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What constrains the answer to a chat request.

    tools: those that the prompt offers to the model.
    parser: extracts tool calls from the answer.
    structure: the constraint for decoding; None leaves it unconstrained.
    may_reason: whether reasoning may come before the answer.
    """

    tools: tuple[Tool, ...] = ()
    parser: type[ToolParser] = PlainTextParser
    structure: StructuredOutputConfig | None = None
    may_reason: bool = True

    @classmethod
    def of(cls, request: ChatRequest, tokenizer: Tokenizer, stage: Stage) -> ResponseFormat:
        """The format that `request` asks for, where answers begin at this stage of the model's reasoning.

        Raises ApiError for what the model's chat template does not support.
        """
        choice, tools = request.tool_choice, tuple(request.tools or ())
        if not tools and choice is not None:
            raise ApiError(400, "tool_choice requires tools: give tools as well, or leave it out.", "tool_choice")
        if not tools or choice == "none":
            structure = _structure(request)
            return cls(structure=structure, may_reason=structure is None)
        parser = tool_parser_for(tokenizer.chat_template)
        if parser is None:
            raise ApiError(
                400, "tools are not supported: this model's chat template has no known format for calls.", "tools"
            )
        if request.response_format is not None and not isinstance(request.response_format, TextFormat):
            raise ApiError(
                400,
                "response_format and tools exclude each other: set tool_choice to none, or leave one of them out.",
                "response_format",
            )
        functions = dict(enumerate(tool.function for tool in tools))
        if choice is not None and choice != "auto":
            demanded = {i: (each.name, _parameters(i, each)) for i, each in _chosen(functions, choice).items()}
            return cls(tools, parser, one_call(demanded, parser), may_reason=False)
        several = request.parallel_tool_calls is not False or parser.tags is None
        field = next((f"tools[{i}].function.strict" for i, each in functions.items() if each.strict), None)
        if field is None and several:
            return cls(tools, parser)
        if not _can_be_told_from_text(parser, tokenizer, stage):
            field = field or "parallel_tool_calls"
            raise ApiError(
                400,
                f"{field} requires a forced call with this model, since no tags in its text tell where a call begins: "
                "set tool_choice to required or to a function.",
                field,
            )
        possible = {
            i: (each.name, _parameters(i, each) if each.strict else {"type": "object"}) for i, each in functions.items()
        }
        return cls(tools, parser, text_with_calls(possible, parser, stage, several))


def _structure(request: ChatRequest) -> StructuredOutputConfig | None:
    asked = request.response_format
    if asked is None or isinstance(asked, TextFormat):
        return None
    schema = {"type": "object"} if isinstance(asked, ObjectFormat) else asked.json_schema.schema_
    guidance = schema.get("x-guidance", {"whitespace_pattern": SPACE})
    return StructuredOutputConfig(json_schema=json.dumps({**schema, "x-guidance": guidance}))


def _can_be_told_from_text(parser: type[ToolParser], tokenizer: Tokenizer, stage: Stage) -> bool:
    """Whether the tags of calls, and those of the reasoning before them, are seen in the text of an answer."""
    tags = [*(parser.tags or ()), *(() if stage == "answer" else (OPEN, CLOSE))]
    read = tokenizer.decode(tokenizer.encode("".join(tags), add_special_tokens=False))
    return parser.tags is not None and all(tag in read for tag in tags)


def _chosen(functions: Mapping[int, Function], choice: str | NamedTool) -> Mapping[int, Function]:
    if isinstance(choice, str):
        return functions
    named = {number: each for number, each in functions.items() if each.name == choice.function.name}
    if not named:
        raise ApiError(400, f"tool_choice names {choice.function.name!r}, which is not among the tools.", "tool_choice")
    return named


def _parameters(number: int, function: Function) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, which are an object even where its own does not say so; without one it has
    none. Raises ApiError for parameters that are no object."""
    if function.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    kinds = function.parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        field = parameters_of(number)
        raise ApiError(400, f"{field} have the type {kinds!r}: arguments are always an object.", field)
    return {**function.parameters, "type": "object"}
