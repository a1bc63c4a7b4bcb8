"""Response format: the tools that an answer may call, and the structure that it has to follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.pipelines import StructuredOutputConfig

from .errors import ApiError
from .schema import ChatRequest, Function, NamedTool, ObjectFormat, TextFormat, Tool
from .tools import PlainTextParser, ToolParser, tool_parser_for

SPACE = r"( |\n {0,16})?"  # whitespace in JSON: without a bound, small models repeat it until max_tokens


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What constrains the answer to a chat request.

    tools: those that the prompt offers to the model.
    parser: extracts tool calls from the answer.
    structure: the constraint for decoding; None leaves it unconstrained.
    """

    tools: tuple[Tool, ...] = ()
    parser: type[ToolParser] = PlainTextParser
    structure: StructuredOutputConfig | None = None

    @classmethod
    def of(cls, request: ChatRequest, template: str) -> ResponseFormat:
        """The format that `request` asks for. Raises ApiError for what this chat template does not support."""
        choice, tools = request.tool_choice, tuple(request.tools or ())
        if not tools and choice is not None:
            raise ApiError(400, "tool_choice requires tools: give tools as well, or leave it out.", "tool_choice")
        if not tools or choice == "none":
            return cls(structure=_structure(request))
        parser = tool_parser_for(template)
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
        if choice is None or choice == "auto":
            _check_not_strict(tools)
            if request.parallel_tool_calls is False and parser.several:
                raise ApiError(
                    400,
                    "parallel_tool_calls can be false only where a call is forced: set tool_choice to required or to a "
                    "function, or leave it out.",
                    "parallel_tool_calls",
                )
            return cls(tools, parser)
        return cls(tools, parser, parser.one_call(_schema_of_call(_chosen(tools, choice), parser)))


def _structure(request: ChatRequest) -> StructuredOutputConfig | None:
    asked = request.response_format
    if asked is None or isinstance(asked, TextFormat):
        return None
    schema = {"type": "object"} if isinstance(asked, ObjectFormat) else asked.json_schema.schema_
    guidance = schema.get("x-guidance", {"whitespace_pattern": SPACE})
    return StructuredOutputConfig(json_schema=json.dumps({**schema, "x-guidance": guidance}))


def _check_not_strict(tools: Sequence[Tool]) -> None:
    for number, tool in enumerate(tools):
        if tool.function.strict:
            field = f"tools[{number}].function.strict"
            raise ApiError(
                400, f"{field} requires a forced call: set tool_choice to required or to a function.",
                field,
            )  # fmt: skip


def _chosen(tools: Sequence[Tool], choice: str | NamedTool) -> list[Function]:
    functions = [tool.function for tool in tools]
    if isinstance(choice, str):
        return functions
    named = [function for function in functions if function.name == choice.function.name]
    if not named:
        raise ApiError(400, f"tool_choice names {choice.function.name!r}, which is not among the tools.", "tool_choice")
    return named


def _schema_of_call(functions: Sequence[Function], parser: type[ToolParser]) -> dict[str, Any]:
    """The JSON schema of one call to any of `functions`. References within their parameters stay valid."""
    parameters = [_parameters(function) for function in functions]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": function.name}, parser.arguments: {"$ref": f"#/$defs/{number}"}},
            "required": ["name", parser.arguments],
            "additionalProperties": False,
        }
        for number, function in enumerate(functions)
    ]
    return {
        "x-guidance": {"whitespace_pattern": SPACE},
        "anyOf": calls,
        "$defs": {str(number): _moved(schema, f"#/$defs/{number}") for number, schema in enumerate(parameters)},
    }


def _parameters(function: Function) -> dict[str, Any]:
    """The JSON schema of its arguments, which are an object even where its own does not say so; without one it has
    none. Raises ApiError for parameters that are no object."""
    if function.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    kinds = function.parameters.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise ApiError(
            400, f"The parameters of {function.name} have the type {kinds!r}: arguments are always an object.", "tools"
        )
    return {**function.parameters, "type": "object"}


def _moved(schema: Any, to: str) -> Any:
    """A copy of `schema` for embedding at the JSON pointer `to` of another schema: its references point there."""
    if isinstance(schema, list):
        return [_moved(item, to) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(value, to) for name, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = to + reference[1:]
    return moved
