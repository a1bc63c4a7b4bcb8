"""A conversation as the page keeps it: what was asked, what was answered, and where each token came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from outrider.pipelines import Piece, Span, Statistics

from .settings import Settings


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt and its answer, written under `settings`. A complete one has a `finish_reason` and `stats`."""

    prompt: str
    settings: Settings = field(default_factory=Settings)
    spans: tuple[Span, ...] = ()
    finish_reason: str | None = None
    stats: Statistics | None = None

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(span.text for span in self.spans)

    @property
    def complete(self) -> bool:
        return self.finish_reason is not None

    def extended(self, piece: Piece) -> Turn:
        """This turn with the next piece of its answer; spans of one source that meet become one."""
        spans = list(self.spans)
        for span in piece.spans:
            if spans and spans[-1].source == span.source:
                spans[-1] = replace(spans[-1], text=spans[-1].text + span.text)
            else:
                spans.append(span)
        return replace(self, spans=tuple(spans), finish_reason=piece.finish_reason, stats=piece.stats)


Conversation = tuple[Turn, ...]


def messages(conversation: Iterable[Turn]) -> list[dict[str, str]]:
    """The chat messages that the model sees: every turn, the last one without its answer when it has none."""
    result = []
    for turn in conversation:
        result.append({"role": "user", "content": turn.prompt})
        if turn.complete:
            result.append({"role": "assistant", "content": turn.text})
    return result
