"""Tool calls: how models write them, and how they are told apart from text while they are written."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from outrider.pipelines import StructuredOutputConfig

BEGIN, END = "<tool_call>", "</tool_call>"  # the tags of Hermes, which Qwen and others were trained on


@dataclass(frozen=True, slots=True)
class Call:
    """A function that the model wants called; `arguments` is a JSON object, as text."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{token_hex(12)}")


@dataclass(frozen=True, slots=True)
class Parsed:
    text: str = ""
    calls: tuple[Call, ...] = ()


class ToolParser(ABC):
    """Reads one answer as it comes. `arguments` is what a call's are named."""

    arguments = "arguments"

    @abstractmethod
    def parse(self, text: str, is_last: bool) -> Parsed:
        """The next text, and what can be told by now; with the last, all that is left."""

    @classmethod
    def one_call(cls, schema: dict[str, Any]) -> StructuredOutputConfig:
        """What makes the model write one call of this JSON schema, and nothing else."""
        return StructuredOutputConfig(json_schema=json.dumps(schema))


class PlainTextParser(ToolParser):
    """Everything is text."""

    def parse(self, text: str, is_last: bool) -> Parsed:
        return Parsed(text)


class HermesToolParser(ToolParser):
    """Calls stand between tags, as {"name": ..., "arguments": {...}}. What is not like that stays text.

    The white space around a call, too, is no text.
    """

    def __init__(self) -> None:
        self._held = ""

    def parse(self, text: str, is_last: bool) -> Parsed:
        self._held += text
        texts: list[str] = []
        calls: list[Call] = []
        while (begin := self._held.find(BEGIN)) >= 0:
            end = self._held.find(END, begin)
            if end < 0:
                break
            call = _call(self._held[begin + len(BEGIN) : end], self.arguments)
            end += len(END)
            texts.append(self._held[:begin].rstrip() if call else self._held[:end])
            calls += [call] if call else []
            self._held = self._held[end:].lstrip() if call else self._held[end:]
        ready = len(self._held) if is_last else self._num_ready()
        texts.append(self._held[:ready])
        self._held = self._held[ready:]
        return Parsed("".join(texts), tuple(calls))

    @classmethod
    def one_call(cls, schema: dict[str, Any]) -> StructuredOutputConfig:
        lines = (f'start: "{BEGIN}\\n" call "\\n{END}"', f"call: %json {json.dumps(schema)}")
        return StructuredOutputConfig(grammar="\n".join(lines))

    def _num_ready(self) -> int:
        """Characters that cannot belong to a call, or to the white space before one."""
        begin = self._held.find(BEGIN)
        if begin < 0:
            lengths = range(min(len(BEGIN), len(self._held)), 0, -1)
            begin = len(self._held) - next((n for n in lengths if self._held.endswith(BEGIN[:n])), 0)
        return len(self._held[:begin].rstrip())


class Llama3JsonToolParser(ToolParser):
    """The answer as a whole is one call, {"name": ..., "parameters": {...}}, as Llama 3 writes it, or text."""

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
    """Who reads the calls of a model with this chat template; None where it knows no tools, or they cannot be read."""
    if "tools" not in template or "<function=" in template:  # Qwen3-Coder puts XML between the tags
        return None
    if BEGIN in template:
        return HermesToolParser
    return Llama3JsonToolParser if '"parameters":' in template else None


def _call(text: str, arguments_name: str) -> Call | None:
    try:
        call: Any = json.loads(text)
        name, arguments = call["name"], call[arguments_name]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return Call(name, json.dumps(arguments, ensure_ascii=False))
