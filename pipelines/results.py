"""Results: pieces while a request runs, and a Generation at its end."""

from __future__ import annotations

from dataclasses import dataclass

from .engine.logprobs import TokenLogprobs
from .engine.trace import PassRecord, Statistics
from .text.tokenizer import Span


@dataclass(frozen=True, slots=True)
class Piece:
    """The next part of an answer.

    sources: for each of `token_ids` who proposed it, "target" or the name of a drafter; `spans` divide `text` in the
        same way.
    logprobs: for each of `token_ids`, if the request asked for them.
    finish_reason, stats: only in the last piece; the reason is "stop", "length" or "cancelled".
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    spans: tuple[Span, ...]
    finish_reason: str | None = None
    stats: Statistics | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished answer, with the fields of `Piece` and a record of each pass."""

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    spans: tuple[Span, ...]
    finish_reason: str
    stats: Statistics
    trace: tuple[PassRecord, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def lossy(self) -> bool:
        """Whether drafts may have changed the answer, which then was asked for with `acceptance`."""
        return self.stats.lossy


class _Answers:
    """What all results of `generate` have in common."""

    generations: tuple[Generation, ...]

    @property
    def texts(self) -> list[str]:
        return [generation.text for generation in self.generations]

    @property
    def finish_reasons(self) -> list[str]:
        return [generation.finish_reason for generation in self.generations]

    @property
    def stats(self) -> list[Statistics]:
        return [generation.stats for generation in self.generations]


class DecodedResults(_Answers):
    """The answers to one call, `num_return_sequences` for each prompt, in the order of the prompts."""

    def __init__(self, generations: tuple[Generation, ...]) -> None:
        self.generations = generations

    def __str__(self) -> str:
        return "\n".join(self.texts)


class DecodedText(str, _Answers):
    """The single answer to a string: its text, as programs written for `openvino_genai` expect, with the details."""

    def __new__(cls, generation: Generation) -> DecodedText:
        text = super().__new__(cls, generation.text)
        text.generations = (generation,)
        return text

    def __reduce__(self) -> tuple[type[DecodedText], tuple[Generation]]:
        """For copies, and for sending it to another process."""
        return DecodedText, (self.generations[0],)
