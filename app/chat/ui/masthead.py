"""The head of the page: its title, the state of the model, and what is wrong with the history file."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ..assistant import Assistant
from ..i18n.translations import Words, words_of
from ..store.history import History
from . import rendering
from .event_options import QUEUED, QUICK
from .theme import SCRIPT

BUSY_S, IDLE_S = 0.5, 4  # how often the state of the model is polled


class Masthead:
    """Adds its components to the current block. `switches` changes when a model was loaded, or could not be."""

    def __init__(self, assistant: Assistant, history: History) -> None:
        self._assistant = assistant
        self._history = history
        with gr.Row(elem_id="masthead"):
            self._title = gr.HTML(elem_id="title")
            self._status = gr.HTML(elem_id="status")
        self._notice = gr.HTML(elem_id="notice")
        self._words = gr.HTML(elem_id="words", js_on_load=SCRIPT.read_text(encoding="utf-8"))
        self._clock = gr.Timer(BUSY_S)
        self.switches = gr.State(self._loads())

    def connect(self, blocks: gr.Blocks, loading: gr.events.Dependency, small_print: gr.HTML) -> None:
        """`loading` is the event that begins to load a model."""
        state = [self._status, small_print, self._clock, self.switches]
        gr.on([blocks.load, self._clock.tick], self._tick, self.switches, state, **QUEUED)
        loading.success(self._tick, self.switches, state, **QUEUED)
        for trigger in (blocks.load, self.switches.change):
            trigger(self._texts, None, [self._title, self._notice, self._words], **QUICK)

    def _texts(self, request: gr.Request) -> tuple[str, ...]:
        words, pipeline = words_of(request), self._assistant.pipeline
        promise = "plain" if not pipeline.plans else "drafted" if pipeline.exact else "drafted_inexactly"
        title = f"<h1>Outrider</h1><p>{words(promise)}</p>"
        return title, rendering.notice_html(self._history.notice, words), rendering.words_html(words)

    def _tick(self, seen: str, request: gr.Request) -> tuple[Any, ...]:
        """The state of the model. `seen` is the last value of `switches` in this window."""
        words, assistant = words_of(request), self._assistant
        status = rendering.status_html(assistant.name, assistant.state, words)
        clock = gr.Timer(BUSY_S if assistant.state.name == "warming" else IDLE_S)
        now = self._loads()
        return status, self._small_print(words), clock, gr.skip() if now == seen else now

    def _loads(self) -> str:
        return f"{self._assistant.switches} {self._assistant.refusals}"

    def _small_print(self, words: Words) -> str:
        pipeline = self._assistant.pipeline
        if pipeline.has_fallen_back:
            return words("fallen_back", device=pipeline.device)
        if not pipeline.plans:
            return words("genai", device=pipeline.device)
        return words("exact" if pipeline.exact else "inexact")
