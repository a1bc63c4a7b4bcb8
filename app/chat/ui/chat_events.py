"""What the events of the conversation do: ask, answer, edit, open, replay, stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr

from outrider.pipelines import AUTO, OutriderError

from ...reasoning import answer_without_reasoning
from ..assistant import Assistant
from ..core.conversation import CANCELLED, Turn
from ..core.prefill_progress import PrefillProgress
from ..core.receipt import Receipt
from ..core.settings import Settings
from ..core.values import text_of
from ..i18n.translations import Words, words_of
from ..store.history import History, Node, NoSuchChat, NotKept, title_of
from . import rendering
from .buttons import toggled
from .composer import Entry, Returned, composed, joined, united, untouched
from .drawing import Drawing
from .error_toast import error_html, errors_as_toasts, require_idle
from .message_buttons import to_clipboard
from .redraw import Redraw
from .view import View
from .writing import Writing

STOP_S = 30  # how long to wait for the end of an answer that is stopped
LEAVE_S = 3.0  # and of one that is left; other windows wait as long for their turns
FOLLOW_S = 0.5  # how often an answer of another window is polled
KEEP_S = 2.0  # how often a growing answer is stored, in case the program ends before the answer

Unsent = dict[int | None, tuple[str, Entry]]  # by conversation, None for a new one

log = logging.getLogger(__name__)


class ChatEvents:
    """The parameters of each event are in the order of the inputs with which it is connected."""

    def __init__(self, assistant: Assistant, history: History) -> None:
        self._assistant = assistant
        self._history = history
        self._writing = Writing()
        self._drawing = Drawing()

    def ask(
        self, request: gr.Request, prompt: str, entry: Entry, view: View, coloured: bool, *values: Any
    ) -> tuple[Any, ...]:
        with errors_as_toasts(request):
            prompt = text_of(prompt)
            if not prompt.strip():
                raise gr.Error("", visible=False, print_exception=False)
            settings = Settings.of(*values).seeded()
            view = self._idle(view, request)
            place = view.before_edited(entry.editing)
        begun = self._begin(Turn(prompt, settings, entry.files), place, coloured, request)
        return *composed(*entry.after_edit(), words_of(request)), *begun

    def ask_example(
        self, request: gr.Request, event: gr.SelectData, view: View, coloured: bool, *values: Any
    ) -> tuple[Any, ...]:
        with errors_as_toasts(request):
            turn = Turn(text_of(event.value["text"]), Settings.of(*values).seeded())
        return *untouched(), *self._begin(turn, view, coloured, request)

    def retry(
        self, request: gr.Request, event: gr.RetryData, view: View, coloured: bool, *values: Any
    ) -> tuple[Any, ...]:
        """Ask again. With sampling it uses a new seed, since the same one would give the same text."""
        with errors_as_toasts(request):
            view = self._idle(view, request)
            again = _node_of(view, event.index)
            settings = Settings.of(*values)
            before = again.turn.settings
            if settings.samples:
                settings = settings.seeded(anew=settings.seed == before.seed)
            elif _deciding(settings) == _deciding(before) and again.turn.model == self._assistant.model:
                gr.Info(words_of(request)("same_again"))
            turn = Turn(again.turn.prompt, settings.seeded(), again.turn.files)
        return *untouched(), *self._begin(turn, view.before(again), coloured, request)

    def answer(self, request: gr.Request, view: View, coloured: bool) -> Iterator[tuple[Any, ...]]:
        """Render the answer as it grows, and store as much of it as there is, however it ends."""
        with self._drawing.by(str(request.session_hash)):
            yield from self._answer(request, view, coloured)

    def _answer(self, request: gr.Request, view: View, coloured: bool) -> Iterator[tuple[Any, ...]]:
        yield (gr.skip(),) * 4  # Gradio clears outputs if nothing is yielded
        visitor = str(request.session_hash)
        if not view.is_answering or not self._writing.start(view.nodes[-1].id, visitor):
            return  # withdrawn before it started
        words, asked = words_of(request), view
        redraw, kept, is_kept = Redraw(), time.monotonic(), True
        prompt_tokens = 0
        try:
            for seen in self._assistant.answer(view.conversation, view.nodes[-1].turn.settings, visitor):
                begins = isinstance(seen, Turn) and not view.nodes[-1].turn.token_ids
                if isinstance(seen, Turn):
                    view, notes = view.with_last(seen), {}
                    if seen.complete or time.monotonic() - kept > KEEP_S:
                        kept = time.monotonic()
                        is_kept = self._keep(view, words if is_kept else None)
                else:
                    notes, prompt_tokens = {view.nodes[-1].id: rendering.prefill_html(seen, words)}, seen.total
                if redraw.is_due(begins or not view.is_answering):
                    used = prompt_tokens + len(view.nodes[-1].turn.token_ids)
                    meter = rendering.meter_html(used, self._assistant.pipeline.max_context, words)
                    yield view, _messages(view, coloured, words, notes), gr.skip(), meter
        except Exception as error:  # the page must go on after any error
            if not isinstance(error, OutriderError):
                log.exception("An answer failed")
            gr.Warning(error_html(error, words))
            view, returned = self._after_failure(asked, view, words if is_kept else None)
            yield view, self.render(view, coloured, request), returned, gr.skip()
        finally:
            self._writing.end(asked.nodes[-1].id)
            if view.is_answering and view.tip == asked.tip:
                self._keep(view.with_last(replace(view.nodes[-1].turn, finish_reason=CANCELLED)))

    def render_with_buttons(self, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        return self.render(view, coloured, request), *toggled(not view.is_answering, view.is_answering)

    def render(self, view: View, coloured: bool, request: gr.Request) -> list[dict[str, str]]:
        return _messages(view, coloured, words_of(request), {})

    def undo(
        self, event: gr.UndoData, view: View, coloured: bool, text: str | None, entry: Entry, request: gr.Request
    ) -> tuple[Any, ...]:
        """Hide the last turn, which is kept as a branch, and put its prompt into the box."""
        with errors_as_toasts(request):
            view = self._idle(view, request)
            undone, words = _node_of(view, event.index), words_of(request)
            view = view.before(undone)
            typed, entry = _shown(text, entry, view)
            gr.Info(words("undone"))
            return *composed(*entry.with_prompt(typed, undone.turn), words), view, self.render(view, coloured, request)

    def open(
        self, request: gr.Request, chat: int, coloured: bool, text: str | None, entry: Entry, view: View, unsent: Unsent
    ) -> tuple[Any, ...]:
        self.leave_chat(request)
        with errors_as_toasts(request):
            unsent = self._stashed(unsent, view, text, entry)
            view = self._current(View(chat, self._history.resume(chat)))
            if view.is_answering:  # now, as the window may turn away before `follow` begins
                self._drawing.follow(str(request.session_hash), view.nodes[-1].id)
            return *_restored(unsent, view, request), view, *self.render_with_buttons(view, coloured, request), unsent

    def follow(self, request: gr.Request, view: View, coloured: bool) -> Iterator[tuple[Any, ...]]:
        """Render the answer that another window asked for, as far as it is stored, until it ends."""
        yield (gr.skip(),) * 4  # see `answer`
        visitor = str(request.session_hash)
        if not view.is_answering or self._writing.visitor(view.nodes[-1].id) == visitor:
            return
        node = view.nodes[-1].id
        with self._drawing.by(visitor):
            while view.is_answering and self._drawing.goes_on(visitor, node, FOLLOW_S):
                with errors_as_toasts(request):
                    latest = self._current(view.with_last(self._kept(view)))
                if latest != view:
                    view = latest
                    yield view, *self.render_with_buttons(view, coloured, request)

    def new_chat(
        self, request: gr.Request, text: str | None, entry: Entry, view: View, unsent: Unsent
    ) -> tuple[Any, ...]:
        self.leave_chat(request)
        unsent = self._stashed(unsent, view, text, entry)
        nothing_open = gr.Radio(value=None)  # together with the rest: a selected item cannot be selected again
        return *_restored(unsent, View(), request), View(), [], *toggled(True, False), unsent, nothing_open

    def message_button(
        self, event: gr.EventData, view: View, coloured: bool, text: str | None, entry: Entry, request: gr.Request
    ) -> tuple[Any, ...]:
        """Handle a button of a message."""
        with errors_as_toasts(request):
            button, node = event._data["action"], view.find(event._data["turn"])
        if button == "copy_prompt":
            return *untouched(), gr.skip(), gr.skip(), to_clipboard(node.turn.prompt)
        if button == "copy_answer":
            return *untouched(), gr.skip(), gr.skip(), to_clipboard(answer_without_reasoning(node.turn.text))
        view = self._idle(view, request)
        if button == "edit":
            edited = entry.with_edit(text or "", node.turn, node.id)
            return *composed(*edited, words_of(request)), gr.skip(), gr.skip(), None
        with errors_as_toasts(request):
            assert view.chat is not None
            step = 1 if button == "on" else -1
            other = node.siblings[(node.siblings.index(node.id) + step) % len(node.siblings)]
            view = View(view.chat, self._history.show_branch(view.chat, other))
            kept = _shown(text, entry, view)
            updates = untouched() if kept == (text or "", entry) else composed(*kept, words_of(request))
            return *updates, view, self.render(view, coloured, request), None

    def receipt(
        self, event: gr.EventData, view: View, coloured: bool, request: gr.Request
    ) -> Iterator[tuple[Any, ...]]:
        """Replay an answer without drafting, and store the result."""
        view = self._idle(view, request)
        words, redraw = words_of(request), Redraw()
        buttons = toggled(False, True)
        yield gr.skip(), gr.skip(), *buttons
        with errors_as_toasts(request):
            node = view.find(event._data["turn"])
            path = (*view.before(node).conversation, node.turn)
            for seen in self._assistant.replay(path, str(request.session_hash)):
                if isinstance(seen, Receipt):
                    time_saved = node.turn.time_saved
                    if time_saved is not None and seen.plain_ms is not None:  # measured, instead of estimated
                        time_saved = time_saved.at(seen.plain_ms)
                    turn = replace(node.turn, receipt=seen, time_saved=time_saved)
                    self._history.update(node.id, turn)
                    view = View(view.chat, tuple(replace(n, turn=turn) if n == node else n for n in view.nodes))
                    yield view, self.render(view, coloured, request), *buttons
                elif redraw.is_due():
                    if isinstance(seen, PrefillProgress):
                        note = rendering.prefill_html(seen, words)
                    else:
                        note = words("replaying", count=f"{seen:,}")
                    chat = _messages(view, coloured, words, {node.id: note})
                    yield view, chat, *buttons

    def stop(self, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        """Stop the shown answer, even if another window asked for it, and keep what there is of it."""
        if self._assistant.stop(str(request.session_hash)):
            return (gr.skip(),) * 4  # the event of that answer renders its end
        with errors_as_toasts(request):
            if view.is_answering:
                node, patience = view.nodes[-1].id, time.monotonic() + STOP_S
                self._writing.withdraw(node)
                while (visitor := self._writing.visitor(node)) and time.monotonic() < patience:
                    self._assistant.stop(visitor)
                    time.sleep(0.05)
                view = self._current(view)
            return view, *self.render_with_buttons(view, coloured, request)

    def leave_chat(self, request: gr.Request) -> None:
        """Stop the answer that this window is writing, keep what there is of it, and let nothing more of it, or of
        another window's answer, be drawn."""
        self._writing.withdraw_all(str(request.session_hash))
        self._assistant.drop(str(request.session_hash), patience_s=LEAVE_S)
        self._drawing.leave(str(request.session_hash), LEAVE_S)

    def leave_deleted(self, view: View, pending: int | None, request: gr.Request) -> None:
        """Stop the answer that is being written if the shown conversation is about to be deleted."""
        if view.chat == pending:
            self.leave_chat(request)

    def close(self, request: gr.Request) -> None:
        self._writing.withdraw_all(str(request.session_hash))
        self._assistant.drop(str(request.session_hash))
        self._drawing.leave(str(request.session_hash))

    def _begin(self, turn: Turn, view: View, coloured: bool, request: gr.Request) -> tuple[Any, ...]:
        view = self._idle(view, request)
        with errors_as_toasts(request):
            chat = self._history.add_chat(title_of(turn.prompt)) if view.chat is None else view.chat
            self._writing.announce(self._history.add_turn(chat, view.tip, turn), str(request.session_hash))
            view = View(chat, self._history.path(chat))
        return view, self.render(view, coloured, request), *toggled(False, True)

    def _after_failure(self, asked: View, view: View, words: Words | None) -> tuple[View, Returned | None]:
        """What is shown after an answer failed: what there is of it, or else its prompt goes back into the box."""
        failed, place = asked.nodes[-1], len(asked.nodes) - 1
        if view.tip == failed.id and view.nodes[-1].turn.text and self._history.has(asked.chat):
            view = view.with_last(replace(view.nodes[-1].turn, finish_reason=CANCELLED))
            self._keep(view, words)
            return view, None
        try:
            self._history.remove(failed.id)
        except NotKept as error:
            log.warning("%s", error)
            return asked.with_last(replace(failed.turn, finish_reason=CANCELLED)), None
        view = self._resumed(asked.chat)
        behind = view.nodes[place].id if len(view.nodes) > place else None  # the turn that was retried or edited
        return view, Returned(failed.turn, behind)

    def _current(self, view: View) -> View:
        """The view with the stored state of its last answer, which is cancelled if no window is writing it any more."""
        if not view.is_answering or self._writing.visitor(view.nodes[-1].id):
            return view
        turn = self._kept(view)
        if turn.complete:
            return view.with_last(turn)
        view = view.with_last(replace(turn, finish_reason=CANCELLED))
        self._keep(view)
        return view

    def _kept(self, view: View) -> Turn:
        """The last turn as it is stored. Raises NoSuchChat."""
        assert view.chat is not None
        kept = {node.id: node.turn for node in self._history.tree(view.chat)}
        if (turn := kept.get(view.nodes[-1].id)) is None:
            raise NoSuchChat("This part of the conversation has been deleted: open it again.")
        return turn

    def _idle(self, view: View, request: gr.Request) -> View:
        """The current view. Raises gr.Error while an answer is being written."""
        with errors_as_toasts(request):
            view = self._current(view)
            require_idle(view, request)
            return view

    def _resumed(self, chat: int | None) -> View:
        return View(chat, self._history.resume(chat)) if chat is not None and self._history.has(chat) else View()

    def _stashed(self, unsent: Unsent | None, view: View, text: str | None, entry: Entry) -> Unsent:
        """`unsent` with what was typed in the conversation that the window leaves. If another window has deleted that,
        it is for a new one."""
        others = {chat: draft for chat, draft in (unsent or {}).items() if chat != view.chat}
        if not text and not entry.files:
            return others
        if view.chat is None or self._history.has(view.chat):
            return {**others, view.chat: (text or "", entry)}
        earlier, of_earlier = others.get(None, ("", Entry()))
        return {**others, None: (joined(text or "", earlier), Entry(united(entry.files, of_earlier.files)))}

    def _keep(self, view: View, words: Words | None = None) -> bool:
        """Store the last turn, and tell whether that worked: the page goes on where nothing can be stored, and says so
        if it has the `words` for it."""
        try:
            self._history.update(view.nodes[-1].id, view.nodes[-1].turn)
        except NotKept as error:
            log.warning("%s", error)
            if words is not None:
                gr.Warning(error_html(error, words))
            return False
        return True


def _messages(view: View, coloured: bool, words: Words, notes: dict[int, str]) -> list[dict[str, str]]:
    unreadable = {node.id: words("unreadable") for node in view.nodes if node.unreadable}
    return rendering.chat_messages(view.nodes, coloured, words, {**unreadable, **notes})


def _restored(unsent: Unsent, view: View, request: gr.Request) -> tuple[Any, ...]:
    """Updates of the composer, with what was typed earlier in this conversation."""
    return composed(*_shown(*unsent.get(view.chat, ("", Entry())), view), words_of(request))


def _shown(text: str | None, entry: Entry, view: View) -> tuple[str, Entry]:
    """Text and entry as they are shown with this view."""
    return entry.shown_with(text or "", {node.id for node in view.nodes})


def _deciding(settings: Settings) -> Settings:
    """The settings without those that greedy decoding does not depend on."""
    return replace(settings, mode=AUTO, draft_tokens=0, seed=0)


def _node_of(view: View, message: int | tuple[int, int]) -> Node:
    """The turn that a message of the chat belongs to."""
    return view.nodes[(message if isinstance(message, int) else message[0]) // 2]
