"""How much of the model's context the conversation takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr

from outrider.pipelines import OutriderError

from ..assistant import Assistant
from ..core.conversation import Conversation, Turn
from ..core.settings import Settings
from ..core.values import text_of
from ..i18n.translations import Words, words_of
from . import rendering
from .composer import Entry
from .event_options import QUEUED
from .view import View
from .wiring import Wiring


class ContextMeter:
    """Adds its components to the current block."""

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        self.html = gr.HTML(elem_id="meter")

    def connect(self, wiring: Wiring, system: gr.Textbox) -> None:
        box, entry = wiring.composer.box, wiring.composer.entry
        gr.on(
            [box.change, entry.change],
            self._with_unsent,
            [wiring.view, system, box, entry],
            self.html,
            trigger_mode="always_last",
            preprocess=False,
            **QUEUED,
        )

    def rendered(self, conversation: Conversation, words: Words) -> str:
        try:
            used = self._assistant.count(conversation)
        except OutriderError:  # another model wrote it, and the chat template of this one rejects it
            used = None
        return rendering.meter_html(used, self._assistant.pipeline.max_context, words)

    def _with_unsent(self, request: gr.Request, view: View, system: Any, text: Any, entry: Entry) -> Any:
        """The conversation with what is in the composer. While an answer is written, that event updates the meter."""
        if view.is_answering:
            return gr.skip()
        before = view.before_edited(entry.editing)
        unsent = Turn(text_of(text), replace(Settings(), system=text_of(system)), entry.files)
        is_empty = not unsent.prompt.strip() and not unsent.files
        conversation = before.conversation if is_empty else (*before.conversation, unsent)
        return self.rendered(conversation, words_of(request))
