"""A conversation: its prompts, its answers, and where each token came from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import AfterValidator, Field

from outrider.pipelines import Piece, Span, Statistics

from .receipt import Receipt
from .settings import Settings
from .time_saved import TimeSaved
from .values import NAME, Name

LONGEST_LOOP, LOOPS, LEAST_LOOPING = 64, 4, 48  # most tokens in a period, least periods, least tokens in all
CANCELLED = "cancelled"  # finish_reason of an answer that was stopped, or cut off by the end of the program


@dataclass(frozen=True, slots=True)
class File:
    """A text file that is attached to a prompt."""

    name: str
    text: str


def _named_source(span: Span) -> Span:
    if not re.fullmatch(NAME, span.source):
        raise ValueError("the source of a span is not the name of a drafter")
    return span


def _same_drafters(time_saved: TimeSaved) -> TimeSaved:
    if time_saved.plain_passes.keys() != time_saved.took_ms.keys():
        raise ValueError("plain_passes and took_ms name different drafters")
    return time_saved


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt and its answer, which `model` wrote with `settings`. A complete one has a `finish_reason`.

    time_saved: by drafting, where it could be measured. receipt: the result of a replay without drafts, once requested.
    """

    prompt: str
    settings: Settings = field(default_factory=Settings)
    files: tuple[File, ...] = ()
    model: str = ""
    spans: tuple[Annotated[Span, AfterValidator(_named_source)], ...] = ()
    token_ids: tuple[int, ...] = ()
    finish_reason: Name | None = None
    stats: Statistics | None = None
    time_saved: Annotated[Annotated[TimeSaved, AfterValidator(_same_drafters)] | None, Field(alias="saving")] = None
    receipt: Receipt | None = None

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return "".join(span.text for span in self.spans)

    @property
    def complete(self) -> bool:
        return self.finish_reason is not None

    @property
    def is_looping(self) -> bool:
        """Whether the answer ends in a repeated sequence of tokens."""
        ids = self.token_ids
        for period in range(1, LONGEST_LOOP + 1):
            span = max(LOOPS * period, LEAST_LOOPING)
            if len(ids) >= span and all(a == b for a, b in zip(ids[-span:], ids[-span + period :], strict=False)):
                return True
        return False

    @property
    def content(self) -> str:
        """What the model sees: the prompt, then each file in a fenced block under its name."""
        return "\n\n".join([self.prompt, *(f"{file.name}:\n{_fenced(file.text)}" for file in self.files)])

    def extended(self, piece: Piece) -> Turn:
        """This turn with the next piece of its answer. Adjacent spans of the same source are merged."""
        spans = list(self.spans)
        for span in piece.spans:
            if spans and spans[-1].source == span.source:
                spans[-1] = replace(spans[-1], text=spans[-1].text + span.text)
            else:
                spans.append(span)
        return replace(
            self,
            spans=tuple(spans),
            token_ids=self.token_ids + piece.token_ids,
            finish_reason=piece.finish_reason,
            stats=piece.stats,
        )


Conversation = tuple[Turn, ...]


def messages(conversation: Iterable[Turn]) -> list[dict[str, str]]:
    """The chat messages that the model sees: the system prompt of the last turn, where it has one, then every turn.

    The last turn may have no answer yet. Earlier turns that were stopped before their first token are left out.
    """
    turns = list(conversation)
    result = []
    if turns and turns[-1].settings.system:
        result.append({"role": "system", "content": turns[-1].settings.system})
    for turn in turns:
        if turn.finish_reason == CANCELLED and not turn.text:
            continue
        result.append({"role": "user", "content": turn.content})
        if turn.complete:
            result.append({"role": "assistant", "content": turn.text})
    return result


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}"
