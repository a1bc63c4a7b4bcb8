"""Tool calls: incremental parsers for the formats in which models write them.

The parsers of OpenVINO GenAI are of no use here: those for tools parse complete texts only, none knows the Hermes
format, and Llama3JsonToolParser takes any JSON object in the text for a call.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from ..reasoning import num_certain

BEGIN, END = "<tool_call>", "</tool_call>"  # the Hermes format, which Qwen and others use
STRING_OR_END = re.compile(rf'"(?:[^"\\]|\\.|\\\Z)*(?:"|\Z)|({END})', re.DOTALL)  # of JSON; one that has no end goes on


@dataclass(frozen=True, slots=True)
class Call:
    """A function call of the model. `arguments` is a JSON object as text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{token_hex(12)}")


@dataclass(frozen=True, slots=True)
class Parsed:
    text: str = ""
    calls: tuple[Call, ...] = ()


class ToolParser(ABC):
    """Parses one answer incrementally.

    arguments: the key of the arguments in a call.
    tags: what stands before and after a call in a text, which can have several; None if a call is the whole answer.
    """

    arguments = "arguments"
    tags: tuple[str, str] | None = None

    @abstractmethod
    def parse(self, text: str, is_last: bool) -> Parsed:
        """Parse the next part of the text. Returns what is certain by now; after the last part, all that is left."""


class PlainTextParser(ToolParser):
    """Finds no calls."""

    def parse(self, text: str, is_last: bool) -> Parsed:
        return Parsed(text)


class HermesToolParser(ToolParser):
    """Calls are {"name": ..., "arguments": {...}} between tags. Anything malformed is text.

    Whitespace around a call is dropped. A tag within a string of the arguments is a part of it.
    """

    tags = (BEGIN, END)

    def __init__(self) -> None:
        self._held = ""
        self._is_behind_call = False

    def parse(self, text: str, is_last: bool) -> Parsed:
        self._held += text
        if self._is_behind_call:
            self._held = self._held.lstrip()
        texts: list[str] = []
        calls: list[Call] = []
        while (begin := self._held.find(BEGIN)) >= 0:
            end = self._end_of_call(begin, is_last)
            if end < 0:
                break
            call = _call(self._held[begin + len(BEGIN) : end], self.arguments)
            end += len(END)
            texts.append(self._held[:begin].rstrip() if call else self._held[:end])
            calls += [call] if call else []
            self._held = self._held[end:].lstrip() if call else self._held[end:]
            self._is_behind_call = call is not None
        self._is_behind_call &= not self._held
        ready = len(self._held) if is_last else num_certain(self._held, BEGIN)
        texts.append(self._held[:ready])
        self._held = self._held[ready:]
        return Parsed("".join(texts), tuple(calls))

    def _end_of_call(self, begin: int, is_last: bool) -> int:
        """Where the tag is that ends the call which begins there; negative if it is not there yet."""
        first = self._held.find(END, begin)
        if first < 0:
            return first
        found = (part.start() for part in STRING_OR_END.finditer(self._held, begin) if part[1])
        return next(found, first if is_last else -1)


class Llama3JsonToolParser(ToolParser):
    """The whole answer is one call, {"name": ..., "parameters": {...}}, or text."""

    arguments = "parameters"

    def __init__(self) -> None:
        self._held = ""
        self._is_text = False

    def parse(self, text: str, is_last: bool) -> Parsed:
        if self._is_text:
            return Parsed(text)
        self._held += text
        begin = self._held.lstrip()
        if is_last and (call := _call(begin, self.arguments)):
            return Parsed(calls=(call,))
        if is_last or (begin and not begin.startswith("{")):
            self._is_text = True
            return Parsed(self._held)
        return Parsed()


def tool_parser_for(template: str) -> type[ToolParser] | None:
    """The parser for models with this chat template; None if the template has no tools or an unknown format."""
    if "tools" not in template or "<function=" in template:  # the XML format of Qwen3-Coder is not supported
        return None
    if BEGIN in template:
        return HermesToolParser
    return Llama3JsonToolParser if '"parameters":' in template else None


def _call(text: str, arguments_name: str) -> Call | None:
    """The call in a text. None for anything else, and for what JSON in UTF-8 cannot hold: NaN and half characters."""
    try:
        call: Any = json.loads(text)
        name, arguments = call["name"], call[arguments_name]
        written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + written).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return Call(name, written) if isinstance(arguments, dict) else None
