"""Grammars of tool calls: for an answer that is one call, and for free text with calls in it.

The arguments of each function have a rule of their own, so that references in its schema keep their meaning, and errors
tell which function they are about.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from outrider.pipelines import ImpossibleForm, StructuredOutputConfig

from ..reasoning import CLOSE, OPEN, Stage
from .errors import FORM, ApiError
from .tools import ToolParser

SPACE = r"( |\n {0,16})?"  # whitespace in JSON: without a bound, small models repeat it until max_tokens
BAD_SCHEMA = re.compile(r"at (\d+)\(\d+\): failed to compile JSON schema: (.*)", re.DOTALL)  # llguidance's words

# The functions that may be called, by their place among the tools: names, and JSON schemas of their arguments.
Functions: TypeAlias = Mapping[int, tuple[str, Mapping[str, Any]]]


def one_call(functions: Functions, parser: type[ToolParser]) -> StructuredOutputConfig:
    """Makes an answer exactly one call."""
    start = "call" if parser.tags is None else '"{}\\n" call "\\n{}"'.format(*parser.tags)
    return _grammar([f"start: {start}"], functions, parser)


def text_with_calls(
    functions: Functions, parser: type[ToolParser], stage: Stage, several: bool
) -> StructuredOutputConfig:
    """Leaves the text of an answer free up to the tag of a call, which must follow.

    stage: of the reasoning, when the answer begins. Tags in the reasoning are text.
    several: whether there may be several calls; otherwise the answer ends with the first one.
    """
    assert parser.tags is not None, "a call is a part of the text only where tags tell"
    begin, end = parser.tags
    before_calls = {
        "start": f'THINK REASONING "{CLOSE}" TEXT | TEXT & ~(THINK TEXT)',
        "reasoning": f'REASONING "{CLOSE}" TEXT',
    }
    rules = [
        f"start: TEXT | first_tag tagged{' (tag tagged)* TEXT' if several else ''}",
        f'first_tag[lazy]: BEFORE_CALLS "{begin}"',
        f'tag[lazy]: TEXT "{begin}"',
        f'tagged: SPACE call SPACE "{end}"',
        f"SPACE: /{SPACE}/",
        "TEXT: /(?s:.*)/",
        rf"THINK: /\s*{OPEN}/",
        f'REASONING: TEXT & ~(TEXT "{CLOSE}" TEXT)',
        f"BEFORE_CALLS: {before_calls.get(stage, 'TEXT')}",
    ]
    return _grammar(rules, functions, parser)


def refusal(structure: StructuredOutputConfig | None, error: ApiError) -> ApiError:
    """What to tell a client that has sent tools, for an error about the form of the answer."""
    if not isinstance(error.__cause__, ImpossibleForm):
        return ApiError(400, error.detail.replace(FORM, "tools"), "tools")
    reason = error.__cause__.reason
    if structure is None or structure.grammar is None or (found := BAD_SCHEMA.match(reason)) is None:
        return ApiError(400, f"tools have parameters that are not supported: {reason}.", "tools")
    rule = structure.grammar.split("\n")[int(found[1]) - 1].partition(":")[0]
    field = parameters_of(int(rule.removeprefix("arguments_")))
    return ApiError(400, f"{field} are not supported: {found[2]}.", field)


def parameters_of(number: int) -> str:
    """The field of a request that has the parameters of a tool."""
    return f"tools[{number}].function.parameters"


def _grammar(rules: list[str], functions: Functions, parser: type[ToolParser]) -> StructuredOutputConfig:
    """The grammar of these rules and the rule `call`."""
    rules = [*rules, f"call: {' | '.join(f'call_{number}' for number in functions)}"]
    for number, (name, schema) in functions.items():
        head = SPACE.join((r"\{", '"name"', ":", f'"{name}"', ",", f'"{parser.arguments}"', ":", ""))
        guided = {**schema, "x-guidance": {"whitespace_pattern": SPACE}}
        rules.append(rf"call_{number}: /{head}/ arguments_{number} /{SPACE}\}}/")
        rules.append(f"arguments_{number}: %json {json.dumps(guided)}")
    return StructuredOutputConfig(grammar="\n".join(rules))
