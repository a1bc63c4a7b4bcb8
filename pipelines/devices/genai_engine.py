"""GenaiEngine: serves requests with OpenVINO GenAI's pipeline, as on GPUs."""

from __future__ import annotations

import time
import weakref
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, TypeAlias

import numpy as np
import openvino
import openvino_genai

from ..engine.backend import Load, QueueingBackend, Room
from ..engine.request import Request
from ..engine.trace import TARGET, PassRecord
from ..errors import DeviceFailed, reason_of
from ..speculation.drafters.draft_model import DraftModel
from ..speculation.drafters.prompt_lookup import PromptLookup
from .genai_config import to_genai

SOURCES = {"off": TARGET, "lookup": PromptLookup.name, "draft": DraftModel.name}  # of drafted tokens
Written: TypeAlias = "list[int] | Exception | None"  # the next tokens, or how GenAI ended


class GenaiEngine(QueueingBackend):
    """Serves requests one after the other with an `openvino_genai.LLMPipeline` that drafts as `speculation` says.

    It does not keep the promises of `Engine`: rounding on a device depends on how tokens are divided into passes, which
    GenAI does not control. GenAI cannot change its way of drafting for a single request. After each pass its streamer
    gets the accepted tokens and one of the target's own, so the number of accepted tokens is known and the number of
    rejected ones is not: `Statistics.drafted` is 0. GenAI does not report how much of a prompt was in its cache, so
    `Statistics.cached_tokens` is 0 even where `exact=False` lets it keep prompts. Nor does it report the time of the
    models apart from its own, so `target_s` is the whole time.

    GenAI generates in a thread of its own, without Python's global lock. Its pipeline for many requests would hold that
    lock in each `step`, and is not used.
    """

    def __init__(
        self, pipeline: openvino_genai.LLMPipeline, room: Room, vocabulary_size: int, speculation: str = "off"
    ) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._room = room
        self._vocabulary_size = vocabulary_size
        self._speculation = speculation
        self._running: _Answer | None = None
        self._end_last: weakref.finalize[..., Any] | None = None  # waits for the thread of the latest answer

    def _check(self, request: Request) -> None:
        """Raises PromptTooLong, CacheTooSmall and InvalidOption."""
        self._room.require(request)
        self._config_of(request)

    def _config_of(self, request: Request) -> openvino_genai.GenerationConfig:
        """Raises InvalidOption."""
        return to_genai(
            request.config, request.max_new_tokens, request.answer, self._speculation, self._vocabulary_size
        )

    @property
    def load(self) -> Load:
        num_running = int(self._running is not None)
        return Load(len(self._arrived) + len(self._waiting), num_running, None, self._num_passes)

    def step(self) -> None:
        """Wait for the next tokens of the request that runs, or of the next one."""
        with self.lock:
            self._queue_arrived()
            if self._running is None:
                if not self._waiting:
                    return
                if self._end_last is not None:
                    self._end_last()
                request = self._waiting.popleft()
                self._running = _Answer(self._pipeline, request, self._config_of(request), self._speculation)
                # Called when Python exits, too. It holds no reference to the request, whose error would lead back here.
                self._end_last = weakref.finalize(self, _end, self._running.writer, self._running.thread)
            answer = self._running
            try:
                answer.advance()
                self._num_passes += 1
            except Exception as error:
                answer.request.error = error
            if answer.request.finished:
                self._retire(answer.request)

    def _retire(self, request: Request) -> None:
        if self._running is not None and self._running.request is request:
            self._running.writer.stopped = True
            self._running = None
        if request in self._waiting:
            self._waiting.remove(request)


class _Answer:
    """One request in GenAI's hands: a thread generates, and what it wrote is taken over step by step."""

    def __init__(
        self,
        pipeline: openvino_genai.LLMPipeline,
        request: Request,
        config: openvino_genai.GenerationConfig,
        speculation: str,
    ) -> None:
        self.request = request
        self._pipeline = pipeline
        self._config = config
        self._speculation = speculation
        self._written: SimpleQueue[tuple[float, Written]] = SimpleQueue()
        self.writer = _Writer(self._written)
        self._rows = request.num_prompt_tokens
        self._until = time.perf_counter()
        self.thread = Thread(target=self._generate, name="genai", daemon=True)
        self.thread.start()

    def advance(self) -> None:
        """Wait for the next tokens, and give them to the request. Raises DeviceFailed."""
        written_at, tokens = self._written.get()
        if isinstance(tokens, Exception):
            raise DeviceFailed(
                f"OpenVINO GenAI failed on this request ({reason_of(tokens)}): ask again, or use another device."
            ) from tokens
        if tokens is None:
            raise DeviceFailed(
                f"OpenVINO GenAI ended the answer after {self.request.num_new} of {self.request.max_new_tokens} "
                "tokens, as it does when its memory is full: shorten the prompt, or lower max_new_tokens."
            )
        num_before = self.request.num_new
        num_accepted = len(tokens) - 1
        self.request.extend(tokens, [*[SOURCES[self._speculation]] * num_accepted, TARGET])
        sources = tuple(self.request.sources[num_before:])
        passed_s, rows = written_at - self._until, self._rows + num_accepted
        self.request.trace.append(PassRecord(self._until, written_at, passed_s, 0.0, rows, sources=sources))
        self._until, self._rows = written_at, 1

    def _generate(self) -> None:
        request = self.request
        outcome: Written = None
        try:
            prompt = openvino.Tensor(np.array([request.tokens[: request.num_prompt_tokens]], np.int64))
            self._pipeline.generate(prompt, self._config, self.writer)
        except Exception as error:
            outcome = error
        self._written.put((time.perf_counter(), outcome))


class _Writer(openvino_genai.StreamerBase):
    """Gets each token from GenAI. It must not raise: GenAI would end the whole process."""

    def __init__(self, written: SimpleQueue[tuple[float, Written]]) -> None:
        super().__init__()
        self._written = written
        self.stopped = False

    def write(self, tokens: Any) -> openvino_genai.StreamingStatus:
        if self.stopped:
            return openvino_genai.StreamingStatus.CANCEL
        self._written.put((time.perf_counter(), tokens if isinstance(tokens, list) else [tokens]))
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def _end(writer: _Writer, thread: Thread) -> None:
    """Stop, and wait for the current pass: it must not overlap the next answer or the end of the process."""
    writer.stopped = True
    if thread is not current_thread():  # the engine may be collected in that thread
        thread.join()
