"""Stream: an answer, piece by piece, while it is generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from .engine.backend import Backend
from .engine.request import Request
from .engine.trace import PassRecord, Statistics
from .results import Generation, Piece
from .text.tokenizer import Span, TextStream


class Stream(Iterator[Piece]):
    """Iterate over it to run the request. `cancel` ends it with a last piece; `close`, or dropping the stream, ends it
    silently. Either way the request's cache blocks are freed at once.

    An error of the request is raised in place of the next piece. `advance` runs a single pass, for callers that want to
    follow each, for example while a long prompt is read. If another thread runs the backend, `take` returns what there
    is without running anything.
    """

    def __init__(
        self,
        engine: Backend,
        request: Request,
        text: TextStream,
        on_end: Callable[[str], None] = lambda answer: None,
    ) -> None:
        self._ended = True
        self._engine = engine
        self._request = request
        self._text = text
        self._on_end = on_end  # called with the whole text, unless the answer was closed or failed
        self._spans: list[Span] = []
        self._num_sent = 0
        engine.add(request)
        self._ended = False

    def __next__(self) -> Piece:
        while not self._ended:
            if (piece := self.advance()) is not None:
                return piece
        raise StopIteration

    def advance(self) -> Piece | None:
        """Run one pass unless the answer has ended, and return the next piece if there is one. Raises the request's
        error."""
        with self._engine.lock:  # passes that other threads run extend this answer as well
            if not self._ended and not self._request.finished:
                self._engine.step()
            return self.take()

    def take(self) -> Piece | None:
        """The next piece if there is one already. Raises the request's error."""
        with self._engine.lock:
            if self._ended:
                return None
            if self._request.error is not None:  # also where others have run the pass
                self._engine.settle()
            if self._request.error is not None:
                self._ended = True
                self._engine.cancel(self._request)  # so that nothing goes on with it
                raise self._request.error
            self._ended = self._request.finished
            spans = self._text.take(final=self._ended)
            self._spans += spans
            if self._ended:
                self._on_end("".join(span.text for span in self._spans))
            return self._piece(spans) if spans or self._ended else None

    @property
    def ended(self) -> bool:
        """Whether no further piece will come."""
        return self._ended

    @property
    def prompt_tokens(self) -> int:
        return self._request.num_prompt_tokens

    @property
    def read_tokens(self) -> int:
        """Tokens of the prompt that have been read or were cached. With GenAI it stays 0 until the first token."""
        with self._engine.lock:
            return self.prompt_tokens if self._request.num_new else min(self._request.num_cached, self.prompt_tokens)

    @property
    def stats(self) -> Statistics:
        """The figures of the request so far."""
        with self._engine.lock:
            return self._request.statistics

    @property
    def trace(self) -> tuple[PassRecord, ...]:
        """What happened in each pass so far."""
        with self._engine.lock:
            return tuple(self._request.trace)

    def cancel(self) -> None:
        """End the answer now; the next piece is the last."""
        self._engine.cancel(self._request)

    def close(self) -> None:
        with self._engine.lock:  # or a thread that waits for the next piece would get a last one
            self._engine.cancel(self._request)
            self._ended = True

    def finish(self) -> Generation:
        """Run to the end and return the whole answer, or the beginning of one that was closed.

        Raises the request's error, even if it was raised before.
        """
        for _ in self:
            pass
        request = self._request
        if request.error is not None:
            raise request.error
        assert request.finish_reason is not None
        self._spans += self._text.take(final=True)  # of a closed answer no piece may have had the last tokens
        return Generation(
            text="".join(span.text for span in self._spans),
            token_ids=tuple(request.new_tokens),
            sources=tuple(request.sources),
            spans=tuple(self._spans),
            finish_reason=request.finish_reason,
            stats=request.statistics,
            trace=tuple(request.trace),
            logprobs=tuple(request.logprobs),
        )

    def _piece(self, spans: tuple[Span, ...]) -> Piece:
        sent, self._num_sent = self._num_sent, self._request.num_new
        return Piece(
            text="".join(span.text for span in spans),
            token_ids=tuple(self._request.new_tokens[sent : self._num_sent]),
            sources=tuple(self._request.sources[sent : self._num_sent]),
            spans=spans,
            finish_reason=self._request.finish_reason,
            stats=self._request.statistics if self._ended else None,
            logprobs=tuple(self._request.logprobs[sent : self._num_sent]),
        )

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._ended = True
            self._engine.abandon(self._request)
