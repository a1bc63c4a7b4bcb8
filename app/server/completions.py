"""/v1/completions: plain text, gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outrider.pipelines import Piece

from .reply import Reply
from .responses import Completion, CompletionChoice, Finish, SpeculationFigures, Usage


class CompletionReply(Reply):
    id_prefix = "cmpl"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._texts = ["" for _ in self._stats]
        self._finishes: list[Finish | None] = [None for _ in self._stats]

    def first_chunks(self) -> Iterator[Completion]:
        return iter(())

    def whole(self) -> Completion:
        answer = self._completion([self._choice(index, text) for index, text in enumerate(self._texts)])
        answer.usage, answer.speculation = self.usage, self.figures
        return answer

    def _take(self, index: int, piece: Piece, figures: SpeculationFigures | None) -> Iterator[Completion]:
        self._texts[index] += piece.text
        if piece.finish_reason is not None:
            self._finishes[index] = "length" if piece.finish_reason == "length" else "stop"
        chunk = self._completion([self._choice(index, piece.text)])
        if figures is not None:
            chunk.speculation = figures
        yield chunk

    def _figures_chunk(self, usage: Usage, figures: SpeculationFigures) -> Completion:
        chunk = self._completion([])
        chunk.usage, chunk.speculation = usage, figures
        return chunk

    def _choice(self, index: int, text: str) -> CompletionChoice:
        return CompletionChoice(index=index, text=text, finish_reason=self._finishes[index])

    def _completion(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(
            id=self.id, object="text_completion", created=self.created, model=self.model, seed=self.seed,
            choices=choices,
        )  # fmt: skip
