"""Talk: asking, answering and moving about in the shown conversation."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from outrider.pipelines import OutriderError

from ..assistant import Assistant
from ..conversation import CANCELLED, Turn
from ..history import History, Node, title_of
from ..reading import Reading
from ..receipt import Receipt
from ..settings import Settings
from ..wording import words_of
from . import rendering
from .acts import copied
from .buttons import toggled
from .composer import Entry, composed, untouched
from .guard import refusal_html, refuse_while_answering, told
from .redraw import Redraw
from .view import View

KEEP_S = 2.0  # how often a growing answer is kept, should the program not live to its end

log = logging.getLogger(__name__)


class Talk:
    """The values of each event come in the order of the inputs that `Page` names."""

    def __init__(self, assistant: Assistant, history: History) -> None:
        self._assistant = assistant
        self._history = history

    def ask(self, prompt: str, entry: Entry, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        if not prompt.strip():
            raise gr.Error("", visible=False, print_exception=False)
        refuse_while_answering(view, request)
        with told(request):
            place = view if entry.editing is None else view.before(view.find(entry.editing))
        begun = self._begin(Turn(prompt, files=entry.files), place, coloured, request)
        return *composed("", Entry(), words_of(request)), *begun

    def ask_example(self, event: gr.SelectData, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        return *untouched(), *self._begin(Turn(event.value["text"]), view, coloured, request)

    def retry(self, event: gr.RetryData, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        refuse_while_answering(view, request)
        again = _node_of(view, event.index)
        turn = Turn(again.turn.prompt, files=again.turn.files)
        return *untouched(), *self._begin(turn, view.before(again), coloured, request)

    def answer(
        self, request: gr.Request, view: View, coloured: bool, mode: str, *values: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Draw the answer as it grows, and keep what there is of it, however it ends."""
        words, asked = words_of(request), view
        redraw, kept = Redraw(), time.monotonic()
        try:
            for seen in self._assistant.answer(view.conversation, Settings(mode, *values), str(request.session_hash)):
                begins = isinstance(seen, Turn) and not view.nodes[-1].turn.token_ids
                if isinstance(seen, Turn):
                    view, notes = view.with_last(seen), {}
                    if seen.complete or time.monotonic() - kept > KEEP_S:
                        kept = time.monotonic()
                        self._keep(view)
                else:
                    notes = {view.nodes[-1].id: rendering.reading_html(seen, words)}
                if redraw.is_due(begins or not view.is_answering):
                    yield view, rendering.chat_messages(view.nodes, coloured, words, notes), *untouched()
        except Exception as error:  # whatever it was, the page must go on: the prompt goes back into its box
            if not isinstance(error, OutriderError):
                log.exception("An answer failed")
            gr.Warning(refusal_html(error, words))
            failed, view = asked.nodes[-1], asked.before(asked.nodes[-1])
            self._history.remove(failed.id)
            view = view if self._history.has(asked.chat) else View()
            entry = composed(failed.turn.prompt, Entry(failed.turn.files), words)
            yield view, rendering.chat_messages(view.nodes, coloured, words), *entry
        finally:
            if view.is_answering:
                self._keep(view.with_last(replace(view.nodes[-1].turn, finish_reason=CANCELLED)))

    def rest(self, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        return self.drawn(view, coloured, request), *toggled(True, False)

    def drawn(self, view: View, coloured: bool, request: gr.Request) -> list[dict[str, str]]:
        return rendering.chat_messages(view.nodes, coloured, words_of(request))

    def undo(self, event: gr.UndoData, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        refuse_while_answering(view, request)
        undone = _node_of(view, event.index)
        with told(request):
            assert view.chat is not None
            view = View(view.chat, self._history.show(view.chat, undone.parent))
            entry = composed(undone.turn.prompt, Entry(undone.turn.files), words_of(request))
            return *entry, view, self.drawn(view, coloured, request)

    def open(self, chat: int, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        self.leave_chat(request)
        with told(request):
            view = View(chat, self._history.path(chat))
            return *composed("", Entry(), words_of(request)), view, *self.rest(view, coloured, request)

    def begin_anew(self, request: gr.Request) -> tuple[Any, ...]:
        self.leave_chat(request)
        entry = composed("", Entry(), words_of(request))
        return *entry, View(), [], *toggled(True, False)

    def act(self, event: gr.EventData, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        """What a button within the conversation asks for."""
        refuse_while_answering(view, request)
        with told(request):
            act, node = event._data["act"], view.find(event._data["turn"])
        if act == "copy_prompt":
            return *untouched(), gr.skip(), gr.skip(), copied(node.turn.prompt)
        if act == "copy_answer":
            return *untouched(), gr.skip(), gr.skip(), copied(node.turn.text)
        if act == "edit":
            entry = composed(node.turn.prompt, Entry(node.turn.files, node.id), words_of(request))
            return *entry, gr.skip(), gr.skip(), None
        with told(request):
            assert view.chat is not None
            step = 1 if act == "on" else -1
            other = node.siblings[(node.siblings.index(node.id) + step) % len(node.siblings)]
            view = View(view.chat, self._history.show_branch(view.chat, other))
            return *composed("", Entry(), words_of(request)), view, self.drawn(view, coloured, request), None

    def receipt(
        self, event: gr.EventData, view: View, coloured: bool, request: gr.Request
    ) -> Iterator[tuple[Any, ...]]:
        """Replay an answer without drafts, and keep what that showed."""
        refuse_while_answering(view, request)
        words, redraw = words_of(request), Redraw()
        buttons = toggled(False, True)
        with told(request):
            node = view.find(event._data["turn"])
            path = (*view.before(node).conversation, node.turn)
            for seen in self._assistant.replay(path, str(request.session_hash)):
                if isinstance(seen, Receipt):
                    saving = node.turn.saving
                    if saving is not None and seen.plain_ms is not None:  # measured, which is better than reckoned
                        saving = saving.at(seen.plain_ms)
                    turn = replace(node.turn, receipt=seen, saving=saving)
                    self._history.update(node.id, turn)
                    view = View(view.chat, tuple(replace(n, turn=turn) if n == node else n for n in view.nodes))
                    yield view, self.drawn(view, coloured, request), *buttons
                elif redraw.is_due():
                    if isinstance(seen, Reading):
                        note = rendering.reading_html(seen, words)
                    else:
                        note = words("replaying", count=f"{seen:,}")
                    chat = rendering.chat_messages(view.nodes, coloured, words, {node.id: note})
                    yield view, chat, *buttons

    def stop(self, request: gr.Request) -> None:
        self._assistant.stop(str(request.session_hash))

    def leave_chat(self, request: gr.Request) -> None:
        """End the answer that is being written; what there is of it is kept."""
        self._assistant.drop(str(request.session_hash), patience_s=30)

    def leave(self, request: gr.Request) -> None:
        self._assistant.drop(str(request.session_hash))

    def _begin(self, turn: Turn, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        refuse_while_answering(view, request)
        with told(request):
            chat = self._history.add_chat(title_of(turn.prompt)) if view.chat is None else view.chat
            self._history.add_turn(chat, view.tip, turn)
            view = View(chat, self._history.path(chat))
        return view, self.drawn(view, coloured, request), *toggled(False, True)

    def _keep(self, view: View) -> None:
        self._history.update(view.nodes[-1].id, view.nodes[-1].turn)


def _node_of(view: View, message: int | tuple[int, int]) -> Node:
    """The turn that a message of the chat belongs to."""
    return view.nodes[(message if isinstance(message, int) else message[0]) // 2]
