"""The chat page: what is on it, and which event calls what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gradio as gr

from outrider.models import embedded_pair
from outrider.pipelines import OutriderError
from outrider.pipelines.model.pair import name_of

from ..assistant import Assistant
from ..core.conversation import Conversation, Turn
from ..core.settings import Settings
from ..core.values import text_of
from ..i18n.translations import Words, translate, words_of
from ..store.history import History
from . import rendering
from .chat_events import ChatEvents
from .chats import ChatList
from .composer import Composer, Entry
from .examples import example_cards
from .insight_panel import InsightPanel
from .message_buttons import LISTENER, Outbox
from .panel import SettingsPanel
from .race import Race
from .theme import SCRIPT
from .view import View

BUSY_S, IDLE_S = 0.5, 4  # how often the state of the model is looked at
FOLLOWING = 32  # windows that see an answer of another one grow
WIDE = 1100  # pixels of a window that has room for the list of conversations
TEMPORARY_S = 3600  # how long an imported file stays in Gradio's temporary folder


class Page:
    """The page of one assistant. `blocks` is what Gradio serves."""

    def __init__(self, assistant: Assistant, history: History) -> None:
        self.assistant = assistant
        self.history = history
        with gr.Blocks(title="Outrider", fill_height=True, delete_cache=(TEMPORARY_S, TEMPORARY_S)) as self.blocks:
            self._lay_out()
            self._connect()

    def _lay_out(self) -> None:
        self.view = gr.State(View())
        self.unsent = gr.State({})
        modes = self.assistant.pipeline.modes
        self.chats = ChatList(self.history)
        with gr.Row(elem_id="masthead"):
            self.title = gr.HTML(elem_id="title")
            self.status = gr.HTML(elem_id="status")
        self.notice = gr.HTML(elem_id="notice")
        self.clock = gr.Timer(BUSY_S)
        self.switches = gr.State(f"{self.assistant.switches} {self.assistant.refusals}")
        self.width = gr.Number(visible=False)  # of the window, which the browser tells
        self.settings = SettingsPanel(self.assistant, self.history)
        self.message_buttons = gr.HTML(elem_id="acts", js_on_load=LISTENER)
        self.words = gr.HTML(elem_id="words", js_on_load=SCRIPT.read_text(encoding="utf-8"))
        self.outbox = Outbox()
        cards: list[Any] = list(example_cards())
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab(translate("tab_chat"), id="chat") as self.chat_tab:
                self.chat = gr.Chatbot(
                    elem_id="chat",
                    show_label=False,
                    container=False,
                    scale=1,
                    height="100%",
                    layout="panel",
                    buttons=[],
                    autoscroll=False,  # it pulls back whoever scrolls up; the page's script follows instead
                    latex_delimiters=[],
                    placeholder=translate("empty"),
                    examples=cards,
                )
                with gr.Column(elem_id="composer"):
                    with gr.Row(elem_id="controls"):
                        self.mode = gr.Radio(
                            [(translate(f"mode_{mode}"), mode) for mode in rendering.MODES if mode in modes],
                            value=Settings().mode if Settings().mode in modes else modes[0],
                            label=translate("mode"),
                            show_label=False,
                            container=False,
                            elem_id="mode",
                        )
                        self.coloured = gr.Checkbox(
                            True, label=translate("colour"), container=False, elem_id="coloured"
                        )
                        self.legend = gr.HTML(elem_id="legend")
                    self.composer = Composer()
                    self.meter = gr.HTML(elem_id="meter")
                    self.small_print = gr.HTML(elem_id="small-print")
            with gr.Tab(translate("tab_race"), id="race", elem_id="race") as self.race_tab:
                self.race = Race(self.assistant)
            with gr.Tab(translate("tab_insight"), id="insight", elem_id="insight-tab") as self.insight_tab:
                self.insight = InsightPanel(self.assistant)

    def _connect(self) -> None:
        queued: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        quick = queued | {"queue": False}  # for what refuses nothing: Gradio shows errors of queued events only
        events = ChatEvents(self.assistant, self.history)
        seen = [self.view, self.coloured]
        composer = self.composer
        buttons, entry = [composer.send, composer.stop], composer.outputs
        shown = [self.view, self.chat, *buttons]
        refresh: dict[str, Any] = {
            "fn": self._refresh, "inputs": [self.view, self.chats.search], **queued,
            "outputs": [*self.chats.outputs, self.meter, self.legend, self.insight.tables],
        }  # fmt: skip
        asked, settings = [composer.box, composer.entry], [self.mode, *self.settings.values]
        for ask, begin, inputs in (
            (composer.box.submit, events.ask, asked),
            (composer.send.click, events.ask, asked),
            (self.chat.example_select, events.ask_example, []),
            (self.chat.retry, events.retry, []),
        ):
            begun = ask(begin, [*inputs, *seen, *settings], [*entry, *shown], preprocess=False, **queued)
            begun.success(**refresh)
            answer = begun.success(
                events.answer,
                seen,
                [self.view, self.chat, *entry, self.meter],
                concurrency_id="answer",
                concurrency_limit=8,
                **queued,
            )
            rested = answer.then(events.render_with_buttons, seen, [self.chat, *buttons], **quick)
            rested.then(**refresh)
        composer.stop.click(events.stop, seen, shown, **quick)
        undone = self.chat.undo(events.undo, seen, [*entry, self.view, self.chat], **queued)
        undone.then(**refresh)
        typed = [self.view, self.settings.system, composer.box, composer.entry]
        gr.on(
            [composer.box.change, composer.entry.change],
            self._weighed,
            typed,
            self.meter,
            trigger_mode="always_last",
            preprocess=False,
            **queued,
        )
        left = [composer.box, composer.entry, self.view, self.unsent]
        emptied = [*entry, *shown, self.unsent, self.chats.listing]
        anew = self.chats.new.click(events.new_chat, left, emptied, **quick)
        anew.then(**refresh)
        opening = [self.chats.listing, self.coloured, *left]
        opened = self.chats.listing.input(events.open, opening, [*entry, *shown, self.unsent], **queued)
        opened.then(**refresh)
        followed = opened.success(
            events.follow, seen, shown, concurrency_id="follow", concurrency_limit=FOLLOWING, **queued
        )
        followed.success(**refresh)
        self.coloured.change(events.render, seen, self.chat, **quick)
        acted = self.message_buttons.select(
            events.message_button, seen, [*entry, self.view, self.chat, self.outbox.box], **queued
        )
        self.outbox.deliver(acted)
        acted.then(**refresh)
        replayed = self.message_buttons.submit(
            events.receipt, seen, shown, concurrency_id="answer", concurrency_limit=8, **queued
        )
        replayed.then(events.render_with_buttons, seen, [self.chat, *buttons], **quick).then(**refresh)

        texts = [self.title, self.notice, self.chats.heading, self.words]
        deletion = self.chats.deletion
        doomed = [self.view, deletion.doomed]
        deleted = deletion.sure.click(events.leave_deleted, doomed, None, **queued)
        deleted = deleted.then(self.chats.delete_doomed, doomed, self.view, **queued)
        imported = self.chats.upload.upload(events.leave_chat, None, None, **queued)
        imported = imported.then(self.chats.imported, self.chats.upload, self.view, **queued)
        self.chats.spare_on([anew, opened, deleted], queued)
        for event in (deleted, imported):
            event.success(events.render_with_buttons, seen, [self.chat, *buttons], **queued).then(**refresh)
        self.chats.connect(self.view, self.outbox, queued)
        composer.connect(queued)
        self.settings.connect(self.blocks, self.mode, queued)
        self.race.connect(self.blocks, self.mode, self.settings.values, queued)
        self.insight.connect(self.insight_tab, [self.chat_tab, self.race_tab], quick)

        state = [self.status, self.small_print, self.clock, self.switches]
        gr.on([self.blocks.load, self.clock.tick], self._tick, self.switches, state, **queued)
        dependent = [self.mode, *self.settings.dependent, *self.settings.model.outputs]
        ranged = [self.mode, self.settings.dependent[0]]
        switched = self.switches.change(self._switched, ranged, dependent, preprocess=False, **queued)
        switched.then(self._texts, None, texts, **quick).then(**refresh)
        switched.then(self._start, None, self.chat, **quick)
        begun = self.settings.model.connect(self.blocks, queued)
        begun.success(self._tick, self.switches, state, **queued)
        self.blocks.load(self._texts, None, texts, **quick)
        self.blocks.load(**refresh)
        self.blocks.load(self._start, None, self.chat, **quick)
        self.blocks.load(self._fit, self.width, self.chats.sidebar, js="() => [window.innerWidth]", **quick)
        self.blocks.unload(events.close)

    def _texts(self, request: gr.Request) -> tuple[str, ...]:
        words, modes = words_of(request), self.assistant.pipeline.modes
        title = f"<h1>Outrider</h1><p>{words('drafted' if len(modes) > 1 else 'plain')}</p>"
        heading = f"<h2>{words('chats')}</h2>"
        return title, rendering.notice_html(self.history.notice, words), heading, rendering.words_html(words)

    def _start(self, request: gr.Request) -> gr.Chatbot:
        """What an empty conversation says, and the prompts to begin with."""
        words = words_of(request)
        cards: list[Any] = list(example_cards(words))
        is_embedded = self.assistant.name == name_of(embedded_pair())
        return gr.Chatbot(examples=cards, placeholder=words("empty_embedded" if is_embedded else "empty"))

    def _refresh(self, view: View, search: str, request: gr.Request) -> tuple[Any, ...]:
        """The list of conversations, and the figures of the shown one and of all answers."""
        words = words_of(request)
        legend = rendering.legend_html(self.assistant.pipeline.modes, words, view.conversation)
        meter = self._meter(view.conversation, words)
        return *self.chats.listed(view, search), meter, legend, self.insight.drawn(request)

    def _weighed(self, request: gr.Request, view: View, system: Any, text: Any, entry: Entry) -> Any:
        """The context with what is about to be sent; while an answer is written, that tells."""
        if view.is_answering:
            return gr.skip()
        before = view.before(view.find(entry.editing)) if entry.editing is not None else view
        unsent = Turn(text_of(text), replace(Settings(), system=text_of(system)), entry.files)
        is_empty = not unsent.prompt.strip() and not unsent.files
        conversation = before.conversation if is_empty else (*before.conversation, unsent)
        return self._meter(conversation, words_of(request))

    def _meter(self, conversation: Conversation, words: Words) -> str:
        try:
            used = self.assistant.count(conversation)
        except OutriderError:  # another model wrote it, and the template of this one refuses it
            used = None
        return rendering.meter_html(used, self.assistant.pipeline.max_context, words)

    def _fit(self, width: float) -> gr.Sidebar:
        return gr.Sidebar(open=width >= WIDE)

    def _tick(self, seen: str, request: gr.Request) -> tuple[Any, ...]:
        """How far the model is. `seen` is what this window knows of it: another one may have switched it."""
        words, assistant = words_of(request), self.assistant
        status = rendering.status_html(assistant.name, assistant.state, words)
        clock = gr.Timer(BUSY_S if assistant.state.name == "warming" else IDLE_S)
        now = f"{assistant.switches} {assistant.refusals}"
        return status, self._small_print(words), clock, gr.skip() if now == seen else now

    def _switched(self, mode: str, max_new_tokens: float, request: gr.Request) -> tuple[Any, ...]:
        """What the model that answers now can do."""
        modes = self.assistant.pipeline.modes
        choices = [(translate(f"mode_{name}"), name) for name in rendering.MODES if name in modes]
        radio = gr.Radio(choices=choices, value=mode if mode in modes else modes[-1])
        ranged = self.settings.ranged(self.assistant, max_new_tokens)
        return radio, *ranged, *self.settings.model.listed(request)

    def _small_print(self, words: Words) -> str:
        pipeline = self.assistant.pipeline
        if pipeline.device != "CPU":
            return words("genai", device=pipeline.device)
        return words("exact" if pipeline.exact else "inexact")
