"""What a request gives back: pieces while it runs, a Generation when it is done."""

from __future__ import annotations

from dataclasses import dataclass

from .engine.logprobs import TokenLogprobs
from .engine.trace import PassRecord, Statistics
from .text.tokenizer import Span


@dataclass(frozen=True, slots=True)
class Piece:
    """The next part of an answer.

    `sources` tells for each of `token_ids` who proposed it ("target", or the drafter's name); `spans` cut `text` the
    same way; `logprobs` are those of the same tokens, where the request wanted any. The last piece of an answer has a
    `finish_reason` ("stop", "length" or "cancelled") and `stats`.
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
    """One finished answer; the fields are those of `Piece`, and what happened in each pass."""

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    spans: tuple[Span, ...]
    finish_reason: str
    stats: Statistics
    trace: tuple[PassRecord, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


class _Answers:
    """What every result of `generate` tells of its answers."""

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
    """The one answer to one string: the text, as programs written for `openvino_genai` expect it, and its details."""

    def __new__(cls, generation: Generation) -> DecodedText:
        text = super().__new__(cls, generation.text)
        text.generations = (generation,)
        return text
