"""The list of kept conversations, at the left."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from ..i18n.translations import translate, words_of
from ..store.history import History
from ..store.transfer import exchange_of, read_exchange, to_json, to_markdown
from .buttons import Deletion
from .error_toast import errors_as_toasts, toast
from .message_buttons import Outbox, to_file
from .view import View


class ChatList:
    """Lays itself out where it is made; `Page` connects what changes the shown conversation.

    outputs: the components that `listed` gives updates of.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        with gr.Sidebar(position="left", width=290, open=False, elem_id="chats") as self.sidebar:
            self.heading = gr.HTML(elem_id="chats-heading")
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
        self._acts = [self.rename, self.deletion.delete, self.json, self.markdown]
        self.outputs = [self.listing, self.title, *self._acts]

    def connect(self, view: gr.State, outbox: Outbox, queued: dict[str, Any]) -> None:
        """What needs nothing but the list and the shown conversation."""
        asked = [view, self.search]
        self.search.change(self.listed, asked, self.outputs, **queued)
        gr.on([self.rename.click, self.title.submit], self._rename, [*asked, self.title], self.outputs, **queued)
        self.deletion.connect(_open_chat, view, queued)
        outbox.deliver(self.json.click(self._to_json, view, outbox.box, **queued))
        outbox.deliver(self.markdown.click(self._to_markdown, view, outbox.box, **queued))

    def spare_on(self, events: list[gr.events.Dependency], queued: dict[str, Any]) -> None:
        """Who turns to another conversation does not mean that one."""
        for event in events:
            event.then(self.deletion.spared, None, self.deletion.outputs, **queued)

    def listed(self, view: View, search: str) -> tuple[Any, ...]:
        """For `outputs`: the list, the shown conversation marked in it, its title, and whether it can be acted upon."""
        chats = self._history.chats(search or "")
        shown = view.chat if view.chat in {chat.id for chat in chats} else None
        title = self._history.title(view.chat) if view.chat is not None and self._history.has(view.chat) else ""
        choices = [(chat.title or "…", chat.id) for chat in chats]
        is_open = view.chat is not None
        usable = (gr.Button(interactive=is_open) for _ in self._acts)
        return gr.Radio(choices=choices, value=shown), gr.Textbox(value=title, interactive=is_open), *usable

    def delete_doomed(self, view: View, doomed: int | None) -> View:
        if doomed is not None:
            self._history.delete(doomed)
        return View() if view.chat == doomed else view

    def imported(self, content: bytes, request: gr.Request) -> View:
        with errors_as_toasts(request):
            exchange = read_exchange(content)
            chat = self._history.insert(exchange.title, exchange.turns, exchange.tip)
            gr.Info(escape(words_of(request)("imported", title=self._history.title(chat)), quote=False))
            return View(chat, self._history.resume(chat))

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
