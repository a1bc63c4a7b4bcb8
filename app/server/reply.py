"""Reply: the answers to one request in the format of an endpoint, as chunks or as a whole."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from secrets import token_hex
from typing import TypeAlias

from pydantic import BaseModel

from outrider.pipelines import EXACT, Piece, Statistics

from .logprobs import LogprobsFormatter
from .responses import ChatChunk, Completion, PromptTokensDetails, SpeculationFigures, Usage

Chunk: TypeAlias = ChatChunk | Completion


@dataclass(frozen=True, slots=True)
class Terms:
    """What is known of a reply before generation begins.

    answers_each: answers per prompt.
    tells_usage: whether a stream ends with a separate chunk for the usage.
    logprobs: formats log-probabilities; None where the request does not ask for them.
    """

    model: str
    seed: int
    mode: str
    acceptance: str
    num_prompts: int
    answers_each: int
    tells_usage: bool
    logprobs: LogprobsFormatter | None


class Reply(ABC):
    """Collects the pieces of all answers. Answers to the same prompt have adjacent indices."""

    id_prefix: str

    def __init__(self, terms: Terms) -> None:
        self.id = f"{self.id_prefix}-{token_hex(12)}"
        self.created = int(time.time())
        self.terms = terms
        self.num_answers = terms.num_prompts * terms.answers_each
        self._stats: list[Statistics | None] = [None] * self.num_answers

    def chunks(self, index: int, piece: Piece) -> list[Chunk]:
        """The chunks to stream for the next piece of an answer. The last chunk of all has the usage and figures."""
        self._stats[index] = piece.stats
        chunks = list(self._take(index, piece))
        if len(self._ended) == self.num_answers:
            if self.terms.tells_usage:
                chunks.append(self._empty_chunk())
                chunks[-1].usage = self.usage
            chunks[-1].speculation = self.figures
        return chunks

    def add(self, index: int, piece: Piece) -> None:
        """Keep a piece for `whole`."""
        self.chunks(index, piece)

    @abstractmethod
    def first_chunks(self) -> Iterator[Chunk]:
        """The chunks to stream before the first piece."""

    @abstractmethod
    def whole(self) -> BaseModel:
        """The complete response, once all answers have ended."""

    @abstractmethod
    def _take(self, index: int, piece: Piece) -> Iterator[Chunk]:
        """Keep the next piece of an answer, and yield its chunk. Pieces other than the last may have none."""

    @abstractmethod
    def _empty_chunk(self) -> Chunk:
        """A chunk without choices."""

    @property
    def _ended(self) -> list[Statistics]:
        return [stats for stats in self._stats if stats is not None]

    @property
    def usage(self) -> Usage:
        first_of_each = self._ended[:: self.terms.answers_each]
        cached = sum(stats.cached_tokens for stats in first_of_each)
        prompt = sum(stats.prompt_tokens for stats in first_of_each)
        written = sum(stats.new_tokens for stats in self._ended)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=written,
            total_tokens=prompt + written,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        )

    @property
    def figures(self) -> SpeculationFigures:
        return SpeculationFigures(
            mode=self.terms.mode,
            acceptance=self.terms.acceptance,
            lossy=self.terms.acceptance != EXACT,
            passes=sum(stats.passes for stats in self._ended),
            drafted=sum(stats.drafted for stats in self._ended),
            accepted=sum(stats.accepted for stats in self._ended),
            drafted_by=dict(sum((Counter(stats.drafted_by) for stats in self._ended), Counter())),
            accepted_by=dict(sum((Counter(stats.accepted_by) for stats in self._ended), Counter())),
        )
