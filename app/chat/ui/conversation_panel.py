"""The conversation that a window shows."""

from __future__ import annotations

from typing import Any

import gradio as gr

from outrider.models import embedded_pair
from outrider.pipelines.model.pair import name_of

from ..assistant import Assistant
from ..i18n.translations import translate, words_of
from .event_options import QUICK, TURNS
from .examples import example_cards
from .view import View
from .wiring import Wiring


class ConversationPanel:
    """Adds its components to the current block."""

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        self.view = gr.State(View())
        cards: list[Any] = list(example_cards())
        self.chatbot = gr.Chatbot(
            elem_id="chat",
            show_label=False,
            container=False,
            scale=1,
            height="100%",
            layout="panel",
            buttons=[],
            autoscroll=False,  # it would undo a user's scrolling up; the page's script follows the answer instead
            latex_delimiters=[],
            placeholder=translate("empty"),
            examples=cards,
        )

    def connect(self, wiring: Wiring, blocks: gr.Blocks, switches: gr.State) -> None:
        events, chatbot = wiring.events, self.chatbot
        wiring.answer_on(chatbot.example_select, events.ask_example)
        wiring.answer_on(chatbot.retry, events.retry)
        composer = wiring.composer
        seen = [*wiring.seen, composer.box, composer.entry]
        undone = chatbot.undo(events.undo, seen, [*composer.outputs, self.view, chatbot], **TURNS)
        undone.then(**wiring.refresh)
        wiring.coloured.change(events.render, wiring.seen, chatbot, **QUICK)
        for trigger in (blocks.load, switches.change):
            trigger(self._start, None, chatbot, **QUICK)
        blocks.unload(events.close)

    def _start(self, request: gr.Request) -> gr.Chatbot:
        """The text of an empty conversation, and the example prompts."""
        words = words_of(request)
        cards: list[Any] = list(example_cards(words))
        is_embedded = self._assistant.name == name_of(embedded_pair())
        return gr.Chatbot(examples=cards, placeholder=words("empty_embedded" if is_embedded else "empty"))
