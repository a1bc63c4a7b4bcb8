"""The list of conversations in the left side bar."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr

from ..i18n.translations import translate, words_of
from ..store.history import History
from ..store.transfer import exchange_of, read_exchange, to_json, to_markdown
from .buttons import Deletion
from .error_toast import errors_as_toasts, toast
from .event_options import QUEUED, QUICK, TURNS
from .message_buttons import Outbox, to_file
from .view import View
from .wiring import Wiring

FOLLOWING = 32  # windows that can watch an answer of another window grow at the same time
TURNED = "() => { document.dispatchEvent(new Event('turned')); }"  # for page.js, which locks the prompt until then
WIDE = 1100  # pixels of a window that has room for the list of conversations


class ChatList:
    """Adds its components to the current block.

    outputs: the components that `listed` updates.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        with gr.Sidebar(position="left", width=290, open=False, elem_id="chats") as self._sidebar:
            self._heading = gr.HTML(elem_id="chats-heading")
            self.new = gr.Button(translate("new"), variant="primary", elem_id="new", size="sm")
            self.search = gr.Textbox(
                label=translate("search"), placeholder=translate("search"), elem_id="search", max_lines=1
            )
            self.listing = gr.Radio([], label=translate("chats"), elem_id="listing", show_label=False)
            self.title = gr.Textbox(label=translate("title"), elem_id="chat-title", max_lines=1)
            with gr.Row(elem_id="chat-buttons"):
                self.rename = gr.Button(translate("rename"), size="sm", min_width=80)
                self.deletion = Deletion("delete")
                self.json = gr.Button(translate("export_json"), size="sm", min_width=110)
                self.markdown = gr.Button(translate("export_markdown"), size="sm", min_width=110)
                self.upload = gr.UploadButton(
                    translate("import"),
                    file_types=[".json", ".md"],
                    type="binary",
                    size="sm",
                    min_width=80,
                    elem_id="import",
                )
        self._unsent = gr.State({})
        self._width = gr.Number(visible=False)  # of the window, which the browser tells
        self._buttons = [self.rename, self.deletion.delete, self.json, self.markdown]
        self.outputs = [self.listing, self.title, *self._buttons]

    def connect(self, wiring: Wiring, outbox: Outbox, blocks: gr.Blocks) -> None:
        view = wiring.view
        self._connect_open(wiring)
        self._connect_delete_and_import(wiring)
        asked = [view, self.search]
        self.search.change(self.listed, asked, self.outputs, **QUEUED)
        gr.on([self.rename.click, self.title.submit], self._rename, [*asked, self.title], self.outputs, **QUEUED)
        outbox.deliver(self.json.click(self._to_json, view, outbox.box, **QUEUED))
        outbox.deliver(self.markdown.click(self._to_markdown, view, outbox.box, **QUEUED))
        blocks.load(self._headed, None, self._heading, **QUICK)
        blocks.load(self._fit, self._width, self._sidebar, js="() => [window.innerWidth]", **QUICK)

    def _connect_open(self, wiring: Wiring) -> None:
        events, composer, deletion = wiring.events, wiring.composer, self.deletion
        left = [composer.box, composer.entry, wiring.view, self._unsent]
        restored = [*composer.outputs, *wiring.shown, self._unsent]
        anew = self.new.click(events.new_chat, left, [*restored, self.listing], **TURNS)
        opened = self.listing.input(events.open, [self.listing, wiring.coloured, *left], restored, **TURNS)
        followed = opened.success(
            events.follow, wiring.seen, wiring.shown, concurrency_id="follow", concurrency_limit=FOLLOWING, **QUEUED
        )
        followed.success(**wiring.refresh)
        for event in (anew, opened):
            event.then(None, None, None, js=TURNED, **QUEUED)
            event.then(**wiring.refresh)
            event.then(deletion.reset, None, deletion.outputs, **QUEUED)  # it asked about the previous one

    def _connect_delete_and_import(self, wiring: Wiring) -> None:
        events, view, deletion = wiring.events, wiring.view, self.deletion
        pending = [view, deletion.pending]
        deletion.connect(_open_chat, view)
        deleted = deletion.sure.click(events.leave_deleted, pending, None, **TURNS)
        deleted = deleted.then(self.delete_pending, pending, view, **TURNS)
        deleted.then(deletion.reset, None, deletion.outputs, **QUEUED)

        def take(content: bytes, request: gr.Request) -> View:
            return self.imported(content, request, events.leave_chat)

        imported = self.upload.upload(take, self.upload, view, **TURNS)
        for event in (deleted, imported):
            wiring.render_on(event.success)

    def listed(self, view: View, search: str) -> tuple[Any, ...]:
        """Updates of `outputs`: the list with the shown conversation selected, its title, and the buttons."""
        chats = self._history.chats(search or "")
        shown = view.chat if view.chat in {chat.id for chat in chats} else None
        title = self._history.title(view.chat) if view.chat is not None and self._history.has(view.chat) else ""
        choices = [(chat.title or "…", chat.id) for chat in chats]
        is_open = view.chat is not None
        usable = (gr.Button(interactive=is_open) for _ in self._buttons)
        said = translate("nothing_found") if search and not chats else ""
        return gr.Radio(choices=choices, value=shown, info=said), gr.Textbox(value=title, interactive=is_open), *usable

    def delete_pending(self, view: View, pending: int | None) -> View:
        if pending is not None:
            self._history.delete(pending)
        return View() if view.chat == pending else view

    def imported(self, content: bytes, request: gr.Request, leave: Callable[[gr.Request], None]) -> View:
        """The view of an imported conversation. `leave` ends what the window shows, unless the file is refused."""
        with errors_as_toasts(request):
            exchange = read_exchange(content)
            leave(request)
            chat = self._history.insert(exchange.title, exchange.turns, exchange.tip)
            gr.Info(escape(words_of(request)("imported", title=self._history.title(chat)), quote=False))
            return View(chat, self._history.resume(chat))

    def _headed(self, request: gr.Request) -> str:
        return f"<h2>{words_of(request)('chats')}</h2>"

    def _fit(self, width: float) -> gr.Sidebar:
        return gr.Sidebar(open=width >= WIDE)

    def _rename(self, view: View, search: str, title: str, request: gr.Request) -> tuple[Any, ...]:
        with errors_as_toasts(request):
            chat = _open_chat(request, view)
            if not title.strip():
                raise toast("no_title", request)
            self._history.rename(chat, title.strip())
            return self.listed(view, search)

    def _to_json(self, view: View, request: gr.Request) -> str:
        with errors_as_toasts(request):
            chat = _open_chat(request, view)
            title = self._history.title(chat)
            return to_file(f"{title}.json", to_json(exchange_of(title, self._history.tree(chat), view.tip)))

    def _to_markdown(self, view: View, request: gr.Request) -> str:
        with errors_as_toasts(request):
            title = self._history.title(_open_chat(request, view))
            return to_file(f"{title}.md", to_markdown(title, view.conversation))


def _open_chat(request: gr.Request, view: View) -> int:
    if view.chat is None:
        raise toast("nothing_open", request)
    return view.chat
