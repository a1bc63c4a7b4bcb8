"""Reasoning: separates what a model writes between <think> and </think> from its answer.

ReasoningIncrementalParser of OpenVINO GenAI is of no use here: it drops an answer that begins without <think>, as one
may, and an end that looks like the beginning of a tag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from outrider.pipelines import InvalidOption
from outrider.pipelines.text.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
Stage: TypeAlias = Literal["start", "reasoning", "gap", "answer"]


@dataclass(frozen=True, slots=True)
class Split:
    """A part of an answer; either text may be empty."""

    reasoning: str = ""
    text: str = ""


def num_certain(text: str, tag: str) -> int:
    """How many characters of an unfinished text come before `tag`, what may become it, and the whitespace before it."""
    begin = text.find(tag)
    if begin < 0:
        lengths = range(min(len(tag), len(text)), 0, -1)
        begin = len(text) - next((n for n in lengths if text.endswith(tag[:n])), 0)
    return len(text[:begin].rstrip())


class ReasoningParser:
    """Parses one answer incrementally. The answer begins with its reasoning or has none; later tags are text.

    Whitespace next to the tags is dropped.

    stage: where the next character belongs; "gap" is the whitespace after the reasoning.
    """

    def __init__(self, stage: Stage = "start") -> None:
        self._stage: Stage = stage
        self._held = ""
        self._is_first = True  # whether no reasoning was told yet

    @property
    def stage(self) -> Stage:
        return self._stage

    def parse(self, text: str, is_last: bool) -> Split:
        """Parse the next part of the text. Returns what is certain by now; after the last part, all that is left."""
        self._held += text
        if self._stage == "start":
            self._begin(is_last)
        reasoning = self._reasoning(is_last) if self._stage == "reasoning" else ""
        return Split(reasoning, self._answer() if self._stage in ("gap", "answer") else "")

    def _begin(self, is_last: bool) -> None:
        begin = self._held.lstrip()
        if begin.startswith(OPEN):
            self._stage, self._held = "reasoning", begin[len(OPEN) :]
        elif is_last or not OPEN.startswith(begin):
            self._stage = "answer"

    def _reasoning(self, is_last: bool) -> str:
        if self._is_first:
            self._held = self._held.lstrip()
        reasoning, tag, after = self._held.partition(CLOSE)
        if tag:
            self._stage, self._held = "gap", after
            reasoning = reasoning.rstrip()
        else:
            ready = len(self._held) if is_last else num_certain(self._held, CLOSE)
            reasoning, self._held = self._held[:ready], self._held[ready:]
        self._is_first = self._is_first and not reasoning
        return reasoning

    def _answer(self) -> str:
        text = self._held.lstrip() if self._stage == "gap" else self._held
        self._held = ""
        if text:
            self._stage = "answer"
        return text


NewParser: TypeAlias = Callable[[], ReasoningParser]


def without_reasoning() -> ReasoningParser:
    """A parser that takes every text for an answer."""
    return ReasoningParser("answer")


def answer_without_reasoning(text: str) -> str:
    """A complete answer without its reasoning, or all of it if it consists of nothing else."""
    return ReasoningParser().parse(text, is_last=True).text or text


def opening_of(tokenizer: Tokenizer) -> str | None:
    """What the chat template begins each answer with: <think> and the whitespace after it, or nothing. None for a model
    that does not reason, as its vocabulary tells."""
    if not {OPEN.encode(), CLOSE.encode()} <= tokenizer.vocabulary.keys():
        return None
    try:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": "?"}])
    except InvalidOption:  # a template that wants more than a question
        return ""
    return prompt[prompt.rindex(OPEN) :] if prompt.rstrip().endswith(OPEN) else ""


def reasoning_parser_for(tokenizer: Tokenizer) -> NewParser:
    """What parses an answer of the model with this tokenizer."""
    opening = opening_of(tokenizer)
    if opening is None:
        return without_reasoning
    return lambda: ReasoningParser("reasoning" if opening else "start")
