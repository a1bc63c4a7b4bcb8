"""The chat page: what is on it, and what happens when someone uses it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from outrider.pipelines import OutriderError

from . import rendering
from .assistant import Assistant
from .conversation import Conversation, Turn
from .examples import EXAMPLES
from .settings import Settings

log = logging.getLogger(__name__)

REDRAW_S = 0.05  # how often a growing answer is drawn
DRAFTED = "The same answer, sooner. A drafter rides ahead; the model keeps only what it would have written itself."
EXACT = "Who drafts changes the speed, never the text. Nothing leaves this machine."
INEXACT = "On this device who drafts may change the text. Nothing leaves this machine."
PLAIN = "Plain decoding: on this device nobody rides ahead."
GENAI = "OpenVINO GenAI decodes on {}, where the same seed may give another text. Nothing leaves this machine."
EMPTY = "Ask for a change to a Python function, or start with one of these."


class Page:
    """The page of one assistant. `blocks` is what Gradio serves."""

    def __init__(self, assistant: Assistant) -> None:
        self.assistant = assistant
        with gr.Blocks(title="Outrider", fill_height=True) as self.blocks:
            self._lay_out()
            self._connect()

    def _lay_out(self) -> None:
        self.conversation = gr.State(())
        modes = self.assistant.pipeline.modes
        drafts = len(modes) > 1
        with gr.Row(elem_id="masthead"):
            gr.HTML(f"<h1>Outrider</h1><p>{DRAFTED if drafts else PLAIN}</p>", elem_id="title")
            self.status = gr.HTML(self._status(), elem_id="status")
        self.clock = gr.Timer(0.5)
        with gr.Sidebar(position="right", width=300, open=False, elem_id="settings"):
            self._lay_out_settings(drafts)
        self.chat = gr.Chatbot(
            elem_id="chat",
            show_label=False,
            container=False,
            scale=1,
            height="100%",
            layout="panel",
            buttons=[],
            latex_delimiters=[],
            placeholder=EMPTY,
            examples=[{"text": example.prompt, "display_text": example.title} for example in EXAMPLES],
        )
        with gr.Column(elem_id="composer"):
            with gr.Row(elem_id="controls"):
                self.mode = gr.Radio(
                    [(label, mode) for mode, label in rendering.MODES.items() if mode in modes],
                    value=Settings().mode if Settings().mode in modes else modes[0],
                    show_label=False,
                    container=False,
                    elem_id="mode",
                )
                self.coloured = gr.Checkbox(True, label="Colour by origin", container=False, elem_id="coloured")
                gr.HTML(rendering.legend_html(modes), elem_id="legend")
            with gr.Row(elem_id="entry"):
                self.box = gr.Textbox(
                    show_label=False,
                    container=False,
                    placeholder="Ask for a change",
                    lines=1,
                    max_lines=12,
                    autofocus=True,
                    elem_id="prompt",
                )
                self.send = gr.Button("Send", variant="primary", elem_id="send", min_width=84, scale=0)
                self.stop = gr.Button("Stop", variant="stop", elem_id="stop", min_width=84, scale=0, visible=False)

            self.small_print = gr.HTML(self._small_print(), elem_id="small-print")

    def _lay_out_settings(self, drafts: bool) -> None:
        default, context = Settings(), self.assistant.pipeline.max_context
        gr.HTML("<h2>Sampling</h2>")
        self.settings: dict[str, Any] = {
            "temperature": gr.Slider(0, 2, default.temperature, step=0.05, label="Temperature"),
            "top_k": gr.Slider(0, 200, default.top_k, step=1, label="Top-k (0: no limit)"),
            "top_p": gr.Slider(0.05, 1, default.top_p, step=0.05, label="Top-p"),
            "min_p": gr.Slider(0, 0.95, default.min_p, step=0.05, label="Min-p"),
            "repetition_penalty": gr.Slider(0.5, 2, default.repetition_penalty, step=0.05, label="Repetition penalty"),
            "seed": gr.Number(default.seed, precision=0, minimum=0, label="Seed"),
            "max_new_tokens": gr.Slider(1, context, min(512, context), step=1, label="Answer tokens"),
            "draft_tokens": gr.Slider(
                0, 16, default.draft_tokens, step=1, label="Draft tokens (0: as many as pay)", visible=drafts
            ),
        }

    def _connect(self) -> None:
        queued: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        quick = queued | {"queue": False}  # for what refuses nothing: Gradio shows errors of queued events only
        seen = [self.conversation, self.coloured]
        shown = [self.box, self.conversation, self.chat, self.send, self.stop]
        for ask, begin, inputs in (
            (self.box.submit, self._ask, [self.box]),
            (self.send.click, self._ask, [self.box]),
            (self.chat.example_select, self._ask_example, []),
            (self.chat.retry, self._retry, []),
        ):
            answer = ask(begin, [*inputs, *seen], shown, **queued).success(
                self._answer,
                [*seen, self.mode, *self.settings.values()],
                [self.conversation, self.chat, self.box],
                concurrency_id="answer",
                concurrency_limit=8,
                **queued,
            )
            answer.then(self._rest, seen, [self.chat, self.send, self.stop], **quick)
        self.stop.click(self._stop, None, None, **quick)
        self.chat.undo(self._undo, seen, shown[:3], **queued)
        self.chat.clear(self._clear, None, shown[1:], **quick)
        self.coloured.change(rendering.chat_messages, seen, self.chat, **quick)
        state = [self.status, self.small_print, self.clock]
        gr.on([self.blocks.load, self.clock.tick], self._tick, None, state, **quick)
        self.blocks.unload(self._leave)

    # What happens in an event. The values come in the order of the inputs that `_connect` names.

    def _ask(self, prompt: str, conversation: Conversation, coloured: bool) -> tuple[Any, ...]:
        if not prompt.strip():
            raise gr.Error("", visible=False, print_exception=False)
        return self._begin(prompt, conversation, coloured)

    def _ask_example(self, event: gr.SelectData, conversation: Conversation, coloured: bool) -> tuple[Any, ...]:
        return self._begin(event.value["text"], conversation, coloured)

    def _retry(self, event: gr.RetryData, conversation: Conversation, coloured: bool) -> tuple[Any, ...]:
        _refuse_while_answering(conversation)
        kept, again = _cut(conversation, event.index)
        return self._begin(again.prompt, kept, coloured)

    def _begin(self, prompt: str, conversation: Conversation, coloured: bool) -> tuple[Any, ...]:
        _refuse_while_answering(conversation)
        conversation = (*conversation, Turn(prompt))
        chat = rendering.chat_messages(conversation, coloured)
        return "", conversation, chat, gr.Button(visible=False), gr.Button(visible=True)

    def _answer(
        self, request: gr.Request, conversation: Conversation, coloured: bool, mode: str, *values: Any
    ) -> Iterator[tuple[Any, ...]]:
        settings = Settings(mode, **dict(zip(self.settings, values, strict=True)))
        drawn = 0.0
        try:
            for turn in self.assistant.answer(conversation, settings, str(request.session_hash)):
                if turn.complete or time.monotonic() - drawn > REDRAW_S:
                    drawn = time.monotonic()
                    conversation = (*conversation[:-1], turn)
                    yield conversation, rendering.chat_messages(conversation, coloured), gr.skip()
        except Exception as error:  # whatever it was, the page must go on: the prompt goes back into its box
            if not isinstance(error, OutriderError):
                log.exception("An answer failed")
            gr.Warning(str(error), title="Not answered")
            kept, failed = conversation[:-1], conversation[-1]
            yield kept, rendering.chat_messages(kept, coloured), failed.prompt

    def _rest(self, conversation: Conversation, coloured: bool) -> tuple[Any, ...]:
        return rendering.chat_messages(conversation, coloured), gr.Button(visible=True), gr.Button(visible=False)

    def _undo(self, event: gr.UndoData, conversation: Conversation, coloured: bool) -> tuple[Any, ...]:
        _refuse_while_answering(conversation)
        kept, undone = _cut(conversation, event.index)
        return undone.prompt, kept, rendering.chat_messages(kept, coloured)

    def _clear(self, request: gr.Request) -> tuple[Any, ...]:
        self.assistant.drop(str(request.session_hash), patience_s=30)
        return (), [], gr.Button(visible=True), gr.Button(visible=False)

    def _stop(self, request: gr.Request) -> None:
        self.assistant.stop(str(request.session_hash))

    def _leave(self, request: gr.Request) -> None:
        self.assistant.drop(str(request.session_hash))

    def _tick(self) -> tuple[str, str, gr.Timer]:
        return self._status(), self._small_print(), gr.Timer(active=self.assistant.state.name == "warming")

    def _small_print(self) -> str:
        pipeline = self.assistant.pipeline
        if pipeline.device != "CPU":
            return GENAI.format(pipeline.device)
        return EXACT if pipeline.exact else INEXACT

    def _status(self) -> str:
        return rendering.status_html(self.assistant.name, self.assistant.state)


def _cut(conversation: Conversation, message: int | tuple[int, int]) -> tuple[Conversation, Turn]:
    """The turns before the one that a message of the chat belongs to, and that turn."""
    turn = (message if isinstance(message, int) else message[0]) // 2
    return conversation[:turn], conversation[turn]


def _refuse_while_answering(conversation: Conversation) -> None:
    if conversation and not conversation[-1].complete:
        raise gr.Error("An answer is still being written: stop it first.", title="One at a time", print_exception=False)
