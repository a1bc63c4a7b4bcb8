"""The chat page: which components it has, and in which order they are connected."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ..assistant import Assistant
from ..i18n.translations import translate, words_of
from ..store.history import History
from . import rendering
from .answer_controls import AnswerControls
from .chat_events import ChatEvents
from .chats import ChatList
from .composer import Composer
from .context_meter import ContextMeter
from .conversation_panel import ConversationPanel
from .event_options import QUEUED
from .insight_panel import InsightPanel
from .local_blocks import LocalBlocks
from .masthead import Masthead
from .message_buttons import MessageButtons, Outbox
from .panel import SettingsPanel
from .race import Race
from .view import View
from .wiring import Wiring

TEMPORARY_S = 3600  # how long an imported file stays in Gradio's temporary folder


class Page:
    """The page of one assistant. `blocks` is what Gradio serves."""

    def __init__(self, assistant: Assistant, history: History) -> None:
        self.assistant = assistant
        self.history = history
        with LocalBlocks(title="Outrider", fill_height=True, delete_cache=(TEMPORARY_S, TEMPORARY_S)) as self.blocks:
            self._lay_out()
            self._connect()

    def _lay_out(self) -> None:
        self.chats = ChatList(self.history)
        self.masthead = Masthead(self.assistant, self.history)
        self.settings = SettingsPanel(self.assistant, self.history)
        self.message_buttons, self.outbox = MessageButtons(), Outbox()
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab(translate("tab_chat"), id="chat") as self.chat_tab:
                self.conversation = ConversationPanel(self.assistant)
                with gr.Column(elem_id="composer"):
                    self.controls = AnswerControls(self.assistant)
                    self.composer = Composer()
                    self.meter = ContextMeter(self.assistant)
                    self.small_print = gr.HTML(elem_id="small-print")
            with gr.Tab(translate("tab_race"), id="race", elem_id="race") as self.race_tab:
                self.race = Race(self.assistant)
            with gr.Tab(translate("tab_insight"), id="insight", elem_id="insight-tab") as self.insight_tab:
                self.insight = InsightPanel(self.assistant)

    def _connect(self) -> None:
        wiring = self._wiring()
        self.composer.connect(wiring)
        self.meter.connect(wiring, self.settings.system)
        self.conversation.connect(wiring, self.blocks, self.masthead.switches)
        self.message_buttons.connect(wiring, self.outbox)
        self.chats.connect(wiring, self.outbox, self.blocks)
        self.settings.connect(self.blocks, self.controls.mode)
        self.race.connect(self.blocks, wiring.settings)
        self.insight.connect(self.insight_tab, [self.chat_tab, self.race_tab])
        self.masthead.connect(self.blocks, self.settings.model.connect(self.blocks), self.small_print)
        self.settings.connect_switch(self.masthead.switches, self.controls).then(**wiring.refresh)
        self.blocks.load(**wiring.refresh)

    def _wiring(self) -> Wiring:
        return Wiring(
            events=ChatEvents(self.assistant, self.history),
            view=self.conversation.view,
            coloured=self.controls.coloured,
            chatbot=self.conversation.chatbot,
            composer=self.composer,
            meter=self.meter.html,
            settings=[self.controls.mode, *self.settings.values],
            refresh={
                "fn": self._refresh,
                "inputs": [self.conversation.view, self.chats.search],
                "outputs": [*self.chats.outputs, self.meter.html, self.controls.legend, self.insight.tables],
                **QUEUED,
            },
        )

    def _refresh(self, view: View, search: str, request: gr.Request) -> tuple[Any, ...]:
        """The list of conversations, and the figures of the shown one and of all answers."""
        words = words_of(request)
        legend = rendering.legend_html(self.assistant.pipeline.modes, words, view.conversation)
        meter = self.meter.rendered(view.conversation, words)
        return *self.chats.listed(view, search), meter, legend, self.insight.drawn(request)
