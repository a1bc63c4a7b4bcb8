"""Conversations to learn from: one function becomes an editing task, or stays plain code."""

from __future__ import annotations

import keyword
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from . import edits
from .corpus import Function
from .wording import FOLLOW_UPS, SYSTEM, WORDING

# Weights of the tasks after the warm-up. Only one function in three has a docstring that can be removed or written;
# one that does not suit the task drawn gets another draw, so those tasks weigh more here than in the outcome.
MIX = {"rename": 32, "undoc": 70, "repeat": 10, "doc": 40, "complete": 12, "write": 20, "plain": 13}
WARM_UP = {"noise": 35, "lines": 35, "repeat": 15, "rename": 15}

EDITS = ("rename", "undoc", "repeat", "complete")  # what a conversation can go on from

VARIED = 0.3  # share of prompts in other than the usual words
FURTHER_TURNS, MOST_TURNS = 0.25, 6  # share of conversations with more than one request, and how many at most
ANOTHER_FUNCTION = 0.3  # share of further requests that come with a function of their own
FENCED, AFTER, WITH_SYSTEM = 0.06, 0.1, 0.03  # code between ``` fences; request after the code; a system message
MAX_DOCSTRING = 240  # characters, for the tasks that have to write one


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` as a chat template takes them; for `task` "plain" and "noise" a single message of bare text."""

    task: str
    messages: tuple[dict[str, str], ...]

    @property
    def prompt(self) -> tuple[dict[str, str], ...]:
        """Everything before the last answer."""
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        return self.messages[-1]["content"]


class TaskMaker:
    """Makes conversations from functions, all choices drawn from the random generator given to each call."""

    def __init__(self, functions: Sequence[Function]) -> None:
        counts = Counter(
            name for f in functions for name in set(re.findall(r"\b[A-Za-z_]\w*(?= = |, |\)|\()", f.source))
        )
        self.functions = [function.source for function in functions]
        usable = [n for n, c in counts.items() if c >= 2 and 2 <= len(n) <= 24 and n[0] != "_"]
        self.identifiers: Sequence[str] = sorted(usable)  # the order of a set differs between processes

    def conversation(self, function: Function, task: str, rng: random.Random, usual: bool = False) -> Conversation:
        """The conversation for one task; `usual` keeps to the usual wording and one turn, as the evaluation does.

        Raises ValueError if the function does not suit the task.
        """
        if task in ("plain", "noise", "lines"):
            return self._bare(function, task, rng)
        request, given, answer = self._exchange(function.source, task, rng, usual)
        messages = [_message("user", _prompt(request, given, rng, usual)), _message("assistant", answer)]
        if not usual and task in EDITS and rng.random() < FURTHER_TURNS:
            for _ in range(rng.randint(1, MOST_TURNS - 1)):
                messages += self._further_turn(messages[-1]["content"], rng)
        if not usual and rng.random() < WITH_SYSTEM:
            messages.insert(0, _message("system", rng.choice(SYSTEM)))
        return Conversation(task, tuple(messages))

    def draw(self, function: Function, mix: dict[str, int], rng: random.Random) -> Conversation:
        """A conversation for the first task drawn from `mix` that the function suits."""
        for _ in range(20):
            task = rng.choices(list(mix), weights=list(mix.values()))[0]
            try:
                return self.conversation(function, task, rng)
            except ValueError:
                continue
        return self.conversation(function, "plain", rng)

    def new_name(self, source: str, rng: random.Random) -> str:
        """An identifier that does not occur in `source`: a real one, or sometimes two of them joined."""
        while True:
            name = rng.choice(self.identifiers)
            if rng.random() < 0.15:
                name = f"{name}_{rng.choice(self.identifiers).lower()}"
            if len(name) <= 30 and not re.search(rf"\b{re.escape(name)}\b", source) and name not in _RESERVED:
                return name

    def _exchange(self, source: str, task: str, rng: random.Random, usual: bool) -> tuple[str, str, str]:
        """(request, code given, code answered)."""
        words = _choose(WORDING[task], rng, usual)
        if task == "rename":
            names = edits.renamable(source)
            if not names:
                raise ValueError("nothing to rename")
            old, new = rng.choice(names), self.new_name(source, rng)
            return words.format(old=old, new=new), source, edits.rename(source, old, new)
        if task == "repeat":
            return words, source, source
        if task == "undoc":
            return words, source, edits.without_docstring(source)
        if task == "complete":
            lines = source.split("\n")
            if len(lines) < 4:
                raise ValueError("too short to complete")
            cut = rng.randint(max(2, len(lines) // 3), len(lines) - 1)
            return words, "\n".join(lines[:cut]), source
        place = edits.docstring(source)
        if place is None or len("\n".join(source.split("\n")[place.first : place.last])) > MAX_DOCSTRING:
            raise ValueError("no docstring of a length that can be written")
        if task == "doc":
            return words, edits.without_docstring(source), source
        if task == "write":
            return words, edits.header(source), source
        raise ValueError(f"unknown task {task!r}")

    def _further_turn(self, code: str, rng: random.Random) -> list[dict[str, str]]:
        """A request about `code`, the last answer, or about another function."""
        if rng.random() < ANOTHER_FUNCTION:
            try:
                request, given, answer = self._exchange(rng.choice(self.functions), rng.choice(EDITS), rng, usual=False)
                return [_message("user", _prompt(request, given, rng, usual=False)), _message("assistant", answer)]
            except ValueError:
                pass  # that function does not suit the task
        task = rng.choice(("rename", "rename", "undoc", "repeat"))
        if task == "undoc" and edits.docstring(code) is None:
            task = "rename"
        if task == "rename" and not edits.renamable(code):
            task = "repeat"
        words = rng.choice(FOLLOW_UPS[task])
        if task == "rename":
            old, new = rng.choice(edits.renamable(code)), self.new_name(code, rng)
            words, code = words.format(old=old, new=new), edits.rename(code, old, new)
        elif task == "undoc":
            code = edits.without_docstring(code)
        return [_message("user", words), _message("assistant", code)]

    def _bare(self, function: Function, task: str, rng: random.Random) -> Conversation:
        if task == "plain":
            return Conversation("plain", (_message("assistant", function.source),))
        if task == "lines":  # a short run of lines, to be repeated
            lines = function.source.split("\n")
            start = rng.randrange(len(lines))
            text = "\n".join(lines[start : start + rng.randint(1, 4)]).strip() or lines[0]
            words = _choose(WORDING["repeat"], rng, usual=False)
            return Conversation("lines", (_message("user", f"{words}\n{text}"), _message("assistant", text)))
        text = ", ".join(rng.choice(self.identifiers) for _ in range(rng.randint(3, 16)))  # nothing but copying helps
        return Conversation("noise", (_message("user", text), _message("assistant", text)))


_RESERVED = frozenset((*keyword.kwlist, *keyword.softkwlist, "self", "cls", "print"))


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _choose(options: Sequence[str], rng: random.Random, usual: bool) -> str:
    return options[0] if usual or rng.random() >= VARIED else rng.choice(options[1:])


def _prompt(request: str, code: str, rng: random.Random, usual: bool) -> str:
    if usual:
        return f"{request}\n{code}"
    if rng.random() < FENCED:
        code = f"```python\n{code}\n```"
    separator = "\n\n" if rng.random() < 0.3 else "\n"
    return f"{code}{separator}{request}" if rng.random() < AFTER else f"{request}{separator}{code}"
