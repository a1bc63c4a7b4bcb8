"""/v1/completions: continuations of plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.pipelines import Piece, TokenLogprobs

from .logprobs import TextLength
from .reply import Reply, Terms
from .responses import Completion, CompletionChoice, CompletionLogprobs, Finish


class CompletionReply(Reply):
    id_prefix = "cmpl"

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._texts = [""] * self.num_answers
        self._tokens: list[list[TokenLogprobs]] = [[] for _ in self._texts]
        self._lengths = [TextLength() for _ in self._texts]
        self._finishes: list[Finish | None] = [None] * self.num_answers

    def first_chunks(self) -> Iterator[Completion]:
        return iter(())

    def whole(self) -> Completion:
        texts = zip(self._texts, self._tokens, strict=True)
        choices = [
            self._choice(i, text, self._logprobs(tokens, TextLength())) for i, (text, tokens) in enumerate(texts)
        ]
        answer = self._completion(choices)
        answer.usage, answer.speculation = self.usage, self.figures
        return answer

    def _take(self, index: int, piece: Piece) -> Iterator[Completion]:
        self._texts[index] += piece.text
        if piece.finish_reason is not None:
            self._finishes[index] = "length" if piece.finish_reason == "length" else "stop"
        self._tokens[index] += piece.logprobs
        logprobs = self._logprobs(piece.logprobs, self._lengths[index])
        yield self._completion([self._choice(index, piece.text, logprobs)])

    def _empty_chunk(self) -> Completion:
        return self._completion([])

    def _logprobs(self, tokens: Sequence[TokenLogprobs], text: TextLength) -> CompletionLogprobs | None:
        return None if self.terms.logprobs is None else self.terms.logprobs.for_completion(tokens, text)

    def _choice(self, index: int, text: str, logprobs: CompletionLogprobs | None) -> CompletionChoice:
        return CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=self._finishes[index])

    def _completion(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(
            id=self.id, object="text_completion", created=self.created, model=self.terms.model, seed=self.terms.seed,
            choices=choices,
        )  # fmt: skip
