"""The model behind the page: it warms up in the background, answers, and stops when told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from outrider.pipelines import LLMPipeline

from .conversation import Conversation, Turn, messages
from .settings import Settings


@dataclass(frozen=True, slots=True)
class State:
    """How far the model is: `name` is "warming", "ready" or "failed", `line` says it to people."""

    name: str
    line: str


class Assistant:
    """One pipeline, shared by all visitors of the page."""

    def __init__(self, pipeline: LLMPipeline, name: str) -> None:
        self.pipeline = pipeline
        self.name = name
        self.state = State("warming", "warming up")
        self._stops: dict[str, threading.Event] = {}

    def warm_up_in_background(self) -> None:
        threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()

    def answer(self, conversation: Conversation, settings: Settings, visitor: str) -> Iterator[Turn]:
        """The last turn of `conversation`, again and again with more of its answer, until it is complete.

        `visitor` names whom `stop` stops. Raises OutriderError for a request that cannot be served.
        """
        stop = self._stops[visitor] = threading.Event()
        turn = replace(conversation[-1], settings=settings)
        with self.pipeline.stream(messages(conversation), **settings.options()) as pieces:
            for piece in pieces:
                turn = turn.extended(piece)
                yield turn
                if stop.is_set():
                    pieces.cancel()

    def stop(self, visitor: str) -> None:
        """End the visitor's answer after the piece that is being written."""
        if visitor in self._stops:
            self._stops[visitor].set()

    def forget(self, visitor: str) -> None:
        """Stop answering someone who has left."""
        self.stop(visitor)
        self._stops.pop(visitor, None)

    def _warm_up(self) -> None:
        try:
            self.pipeline.warm_up()
        except Exception as error:  # whatever it was, the page has to show it
            self.state = State("failed", f"failed to start: {error}")
            raise
        self.state = State("ready", "ready")
