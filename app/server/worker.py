"""Worker: the thread that steps the engine while there are requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

from outrider.pipelines import AUTO, LLMPipeline, Piece, Stream
from outrider.pipelines.text.prompt import Inputs

from .errors import ApiError, as_api_error
from .limits import Limits
from .metrics import CANCELLED, COMPLETED, FAILED, TIMED_OUT, Metrics
from .preprocessor import Preprocessor, Stalled
from .repeated_prompts import streams_of

log = logging.getLogger(__name__)

HANG_S = 60.0  # for one pass
TRIAL_S = 30.0  # for one token
TRIAL_EVERY_S = 5.0
TRIAL: dict[str, Any] = {"max_new_tokens": 1, "apply_chat_template": False, "do_sample": False}

Event: TypeAlias = "tuple[int, Piece] | ApiError"  # an answer's index and next piece, or the error of all


class Answers:
    """The answers to one request, as an asynchronous stream of pieces. Always `close` it."""

    def __init__(self, worker: Worker, num_answers: int, prompt_field: str) -> None:
        self.num_answers = num_answers
        self.prompt_field = prompt_field
        self.deadline = time.monotonic() + worker.limits.request_s
        self.streams: list[Stream] = []
        self.dropped = False
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._worker = worker
        self._num_unread = self._num_unwritten = num_answers

    def __aiter__(self) -> Answers:
        return self

    async def __anext__(self) -> tuple[int, Piece]:
        """The index of an answer and its next piece, until all answers have ended. Raises ApiError."""
        if not self._num_unread:
            raise StopAsyncIteration
        event = await self.events.get()
        if isinstance(event, ApiError):
            raise event
        self._num_unread -= event[1].finish_reason is not None
        return event

    def deliver(self, event: Event) -> None:
        """Queue an event. After the last one, the answers stop counting as open, read or not."""
        self.events.put_nowait(event)
        self._num_unwritten -= not isinstance(event, ApiError) and event[1].finish_reason is not None
        if isinstance(event, ApiError) or not self._num_unwritten:
            self.close()

    def close(self) -> None:
        """Drop what has not been generated yet: its cache blocks are free before the next pass."""
        self.dropped = True
        self._worker.opened.discard(self)


class Worker:
    """Steps the pipeline's backend in a thread, and passes the generated pieces to an asyncio loop.

    All requests share that thread and those of the preprocessor. The answers to the requests in `opened`, `num_open` in
    all, are queued or being generated.
    """

    def __init__(self, pipeline: LLMPipeline, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.opened: set[Answers] = set()  # of the event loop
        self.ready = False
        self.failure: Exception | None = None  # of the warm-up
        self.on_warm: Callable[[], None] = lambda: None  # called when it has succeeded or failed
        self._pipeline = pipeline
        self._metrics = metrics
        self._arrived: SimpleQueue[Answers | None] = SimpleQueue()  # None ends the thread
        self._ending = False
        self._died = False
        self._is_in_doubt = False  # whether the latest answer failed through no fault of its request
        self._is_stalled = False  # whether preprocessing was, the last time that it was needed
        self._next_trial = 0.0
        self._pass_began: float | None = None
        self._preprocessor = Preprocessor(limits)
        self._thread = Thread(target=self._run, name="worker", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def num_open(self) -> int:
        return sum(answers.num_answers for answers in self.opened)

    @property
    def exact(self) -> bool:
        """Whether answers are the same with every drafter. It can change if another device takes over."""
        return self._pipeline.exact

    @property
    def is_ready(self) -> bool:
        """Whether the model is warm, and no other device is just taking over."""
        return self.ready and not self._pipeline.backend.is_changing

    def start(self) -> None:
        """Warm up, then serve. Call it in the event loop that will call `open`."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def end_answers(self) -> None:
        """End all open answers with an error, and refuse new ones. Safe in a signal handler."""
        self._ending = True

    def tell_end(self) -> None:
        """Tell all who wait, which the engine can only do after the running pass or the warm-up, and these may be long.
        Call it in the event loop."""
        for answers in list(self.opened):
            answers.deliver(_shutting_down())

    def check_running(self) -> None:
        """Raises ApiError once the worker ends."""
        if self._ending:
            raise _shutting_down()

    def close(self) -> None:
        """Stop, and wait for the running pass: a process must not exit in the middle of one."""
        self.end_answers()
        self._preprocessor.close()
        self._arrived.put(None)
        self._thread.join()

    async def open(
        self, inputs: Inputs, options: dict[str, Any], num_answers: int, prompt_field: str, num_bytes: int = 0
    ) -> Answers:
        """Begin the answers to a request with a body of `num_bytes`. Raises ApiError if they cannot begin."""
        self.check_running()
        if num_answers > self.limits.answers:
            raise ApiError(400, f"The request asks for {num_answers} answers; the limit is {self.limits.answers}.", "n")
        if self.num_open + num_answers > self.limits.answers:
            raise ApiError(
                429,
                f"{self.num_open} of at most {self.limits.answers} answers are queued or running: try again later.",
                code="queue_full",
                headers={"Retry-After": str(self.limits.retry_after_s)},
            )
        answers = Answers(self, num_answers, prompt_field)
        self.opened.add(answers)
        try:
            begin, is_structured = partial(self._begin, answers, inputs, options), "structured_output_config" in options
            await self._preprocessor.run(begin, is_structured, num_bytes)
            self._is_stalled &= self._preprocessor.is_heavy(is_structured, num_bytes)
        except BaseException as error:
            answers.close()
            if not isinstance(error, Exception):
                raise
            self._is_stalled |= isinstance(error, Stalled)
            told = self._told(error, prompt_field)
            if told.status_code >= 500:
                self._metrics.requests.labels(FAILED).inc()
            raise told from error
        return answers

    def _begin(self, answers: Answers, inputs: Inputs, options: dict[str, Any]) -> None:
        if not answers.dropped:
            answers.streams = streams_of(self._pipeline, inputs, options)
            self._arrived.put(answers)

    async def trouble(self) -> str | None:
        """Why the server cannot answer, or None if it can. After a failed answer, generates a token to find out."""
        if self.failure is not None:
            return "The model failed to start; the server's log has the details."
        if self._died:
            return "The engine has stopped; the server's log has the details. Restart the server."
        if self._ending:
            return "The server is shutting down."
        if not self.is_ready:
            return None
        longest = min(HANG_S, self.limits.request_s)
        if (began := self._pass_began) is not None and time.monotonic() - began > longest:
            return f"A pass of the model has taken longer than {longest:g} s. Restart the server."
        if (self._is_in_doubt or self._is_stalled) and time.monotonic() >= self._next_trial:
            self._next_trial = time.monotonic() + TRIAL_EVERY_S
            await self._try()
        if self._is_stalled:
            return "Prompts are not preprocessed in time. Restart the server if that does not end."
        return "Answers fail; the server's log has the details." if self._is_in_doubt else None

    async def _try(self) -> None:
        """Generate a token; its outcome is recorded as that of any answer."""

        async def write() -> None:
            mode = "off" if "off" in self._pipeline.modes else AUTO
            answers = await self.open("def", {**TRIAL, "mode": mode}, 1, "prompt")
            try:
                async for _ in answers:
                    pass
            finally:
                answers.close()

        with suppress(ApiError, asyncio.TimeoutError):
            await asyncio.wait_for(write(), TRIAL_S)

    def _run(self) -> None:
        try:
            self._pipeline.warm_up()
            self.ready = True
        except Exception as error:
            log.exception("The model failed to start")
            self.failure = error
            self._ending = True
        serving: list[Answers] = []
        try:
            self.on_warm()
            self._serve(serving)
        except BaseException:  # or clients would wait for ever
            log.exception("The engine has stopped")
            self._died = self._ending = True
        for answers in serving:
            self._end_last(answers)
        while self._died and (late := self._arrived.get()) is not None:  # refuses what still arrives, until `close`
            self._end_last(late)

    def _serve(self, serving: list[Answers]) -> None:
        """Serve until the worker ends. What is left in `serving` has not been told of the end."""
        while self._take_arrived(serving):
            serving[:] = [answers for answers in serving if not self._ends(answers)]
            if not serving:
                continue
            try:
                self._pass_began = time.monotonic()
                self._pipeline.backend.step()
            except Exception as error:  # of the backend itself; a request's own error is raised by its stream
                for answers in serving:
                    self._fail(answers, error)
                serving.clear()
                continue
            finally:
                self._pass_began = None
            self._hand_over([event for answers in serving for event in self._written(answers)])
            serving[:] = [answers for answers in serving if answers.streams]

    def _end_last(self, answers: Answers) -> None:
        try:
            self._end(answers, FAILED, _shutting_down())
        except Exception:  # the backend may be broken
            log.exception("Could not end an answer")
            self._hand_over([(answers, _shutting_down())])

    def _take_arrived(self, serving: list[Answers]) -> bool:
        """Add new requests to `serving`, waiting for one if it is empty. False when the worker should end."""
        try:
            while True:
                answers = self._arrived.get(block=not serving)
                if answers is None:
                    return False
                serving.append(answers)
        except Empty:
            return True

    def _ends(self, answers: Answers) -> bool:
        """Ends a request that was dropped or timed out, or that the shutdown ends. Whether it did."""
        if answers.dropped:
            self._end(answers, CANCELLED)
        elif self._ending:
            self._end(answers, FAILED, _shutting_down())
        elif time.monotonic() > answers.deadline:
            self._end(answers, TIMED_OUT, self._timed_out())
        else:
            return False
        return True

    def _written(self, answers: Answers) -> list[tuple[Answers, Event]]:
        """The new pieces of a request. Clears the streams of a request that has ended."""
        events: list[tuple[Answers, Event]] = []
        try:
            for index, stream in enumerate(answers.streams):
                if (piece := stream.take()) is not None:
                    self._is_in_doubt = False
                    events.append((answers, (index, piece)))
                    if piece.stats is not None:
                        self._metrics.observe(piece.stats)
        except Exception as error:
            self._fail(answers, error)
            return events
        if all(stream.ended for stream in answers.streams):
            self._metrics.requests.labels(COMPLETED).inc()
            answers.streams = []
        return events

    def _fail(self, answers: Answers, error: Exception) -> None:
        self._end(answers, FAILED, self._told(error, answers.prompt_field))

    def _end(self, answers: Answers, outcome: str, error: ApiError | None = None) -> None:
        for stream in answers.streams:
            if not stream.ended:
                stream.close()
                self._metrics.observe(stream.stats)
        answers.streams = []
        self._metrics.requests.labels(outcome).inc()
        if error is not None:
            self._hand_over([(answers, error)])

    def _hand_over(self, events: Sequence[tuple[Answers, Event]]) -> None:
        def deliver() -> None:
            for answers, event in events:
                answers.deliver(event)

        if events and self._loop is not None:
            self._loop.call_soon_threadsafe(deliver)

    def _told(self, error: Exception, prompt_field: str) -> ApiError:
        told = as_api_error(error, prompt_field)
        if told.status_code >= 500 and told is not error:
            self._is_in_doubt = True
            log.error("A request failed", exc_info=error)
        return told

    def _timed_out(self) -> ApiError:
        return ApiError(
            504,
            f"The answer took longer than {self.limits.request_s:g} s and was ended: ask for fewer tokens, or start "
            "the server with a higher --request-seconds.",
            code="timeout",
            headers={"X-Should-Retry": "false"},  # or OpenAI's clients would repeat the request
        )


def _shutting_down() -> ApiError:
    headers = {"X-Should-Retry": "false", "Connection": "close"}  # or a connection would wait for the rest of a body
    return ApiError(503, "The server is shutting down.", code="shutting_down", headers=headers)
