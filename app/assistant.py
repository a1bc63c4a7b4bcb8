"""The model behind the page: it warms up in the background, answers, and stops when told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from outrider.pipelines import LLMPipeline

from .conversation import Conversation, Turn, messages
from .settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class State:
    """How far the model is: `name` is "warming", "ready" or "failed"; `line` and `values` are words for it."""

    name: str
    line: str
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Answering:
    """An answer that is being written, and what was asked of it meanwhile."""

    stopped: bool = False
    dropped: bool = False
    ended: threading.Event = field(default_factory=threading.Event)


class Assistant:
    """One pipeline, shared by all visitors of the page."""

    def __init__(self, pipeline: LLMPipeline, name: str) -> None:
        self.pipeline = pipeline
        self.name = name
        self.state = State("warming", "state_warming")
        self._answering: dict[str, _Answering] = {}  # by visitor
        self._warm_up_thread = threading.Thread(target=self._warm_up, name="warm-up", daemon=True)

    def warm_up_in_background(self) -> None:
        self._warm_up_thread.start()

    def close(self) -> None:
        """Drop every answer and let a warm-up come to its end: a process must not exit in the middle of a pass."""
        for visitor in list(self._answering):
            self.drop(visitor, patience_s=5)
        if self._warm_up_thread.is_alive():
            self._warm_up_thread.join()

    def answer(self, conversation: Conversation, settings: Settings, visitor: str) -> Iterator[Turn]:
        """The last turn of `conversation`, again and again with more of its answer, until it is complete.

        `visitor` names whom `stop` and `drop` mean. Raises OutriderError for a request that cannot be served.
        """
        turn = replace(conversation[-1], settings=settings)
        answering = self._answering[visitor] = _Answering()
        try:
            with self.pipeline.stream(messages([*conversation[:-1], turn]), **settings.options()) as pieces:
                for piece in pieces:
                    if answering.dropped:
                        return
                    turn = turn.extended(piece)
                    yield turn
                    if answering.stopped:
                        pieces.cancel()
        finally:
            self._answering.pop(visitor, None)
            answering.ended.set()

    def count(self, conversation: Conversation) -> int | None:
        """Tokens of a conversation as the model's chat template makes them; None for a model without one."""
        tokenizer, said = self.pipeline.tokenizer, messages(conversation)
        if not said:
            return 0
        if not tokenizer.has_chat_template:
            return None
        return len(tokenizer.encode(tokenizer.apply_chat_template(said, False), add_special_tokens=False))

    def stop(self, visitor: str) -> None:
        """Complete the visitor's answer with what there is of it."""
        if answering := self._answering.get(visitor):
            answering.stopped = True

    def drop(self, visitor: str, patience_s: float = 0) -> None:
        """End the visitor's answer without completing it, and wait so long for that to have happened."""
        if answering := self._answering.get(visitor):
            answering.dropped = True
            answering.ended.wait(patience_s)

    def _warm_up(self) -> None:
        try:
            self.pipeline.warm_up()
        except Exception as error:  # whatever it was, the page has to show it
            log.exception("The model failed to start")
            self.state = State("failed", "state_failed", {"reason": str(error)})
            return
        if self.pipeline.device != "CPU":  # the page says what that means
            self.state = State("ready", "state_device", {"device": self.pipeline.device})
            return
        self.state = State("ready", "state_ready" if self.pipeline.exact else "state_inexact")
