"""Windows of the page without a browser: its events called as Gradio calls them, or asked for over HTTP."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx

from outrider.app.chat.ui import Page
from outrider.app.chat.ui.chat_events import ChatEvents
from outrider.app.chat.ui.composer import Entry
from outrider.app.chat.ui.view import View
from outrider.pipelines.config import GenerationConfig

from .scripted import ScriptedPipeline

GOOD = ["auto", 0.7, 0, 1.0, 0.0, 1.0, 0, 64, 0, "exact", ""]  # values of the controls


class StrictPipeline(ScriptedPipeline):
    """Refuses what the engine does."""

    def stream(self, messages: list[dict[str, str]], **options: Any) -> Any:
        GenerationConfig(**options)
        return super().stream(messages, **options)


def request_of(visitor: str) -> Any:
    return SimpleNamespace(headers={}, session_hash=visitor)


class Window:
    """Events of the page, called as Gradio calls them; an error of the page's own is what someone reads."""

    def __init__(self, events: ChatEvents) -> None:
        self.events, self.request, self.view = events, request_of(secrets.token_hex(4)), View()

    def does(self, event: Callable[..., Any], *values: Any) -> Any:
        try:
            return event(self.request, *values)
        except gr.Error:
            return None

    def ask(self, prompt: Any, *values: Any) -> None:
        if begun := self.does(self.events.ask, prompt, Entry(), self.view, True, *values):
            self.view = next(part for part in begun if isinstance(part, View))
            self.answer()

    def answer(self) -> None:
        for drawn in self.events.answer(self.request, self.view, True):
            self.view = drawn[0] if isinstance(drawn[0], View) else self.view

    def open(self, chat: int) -> None:
        opened = self.events.open(self.request, chat, True, "", Entry(), self.view, {})
        self.view = next(part for part in opened if isinstance(part, View))


class Wire:
    """A window that speaks to a served page over HTTP, as a browser does."""

    def __init__(self, page: Page, address: str) -> None:
        events = [(event.fn.__qualname__, event._id) for event in page.blocks.fns.values() if event.fn]
        self._events = dict(reversed(events))  # of one name, the first: presets are deleted as conversations are
        self._address, self._session = address, secrets.token_hex(8)

    def __call__(self, name: str, *values: Any, event: Any = None) -> bool:
        """Whether the event came to a good end; it has to come to one."""
        joined = self.join(name, *values, event=event)
        return joined is not None and self.ends(joined)[joined]

    def join(self, name: str, *values: Any, event: Any = None) -> str | None:
        """Ask for an event without waiting for its end. Returns its id, None if it is refused."""
        body = {"data": values, "event_data": event, "fn_index": self._events[name], "session_hash": self._session}
        with self._client() as client:
            joined = client.post("/queue/join", content=json.dumps(body), headers={"Content-Type": "application/json"})
        return str(joined.json()["event_id"]) if joined.status_code == 200 else None

    def ends(self, *joined: str | None) -> dict[str, bool]:
        """Whether each of these events came to a good end, in the order of their ends."""
        ended: dict[str, bool] = {}
        query = {"session_hash": self._session}
        with self._client() as client, client.stream("GET", "/queue/data", params=query) as stream:
            for line in stream.iter_lines():
                said = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if said.get("msg") == "process_completed":
                    ended[said["event_id"]] = bool(said["success"])
                if ended.keys() >= set(joined):
                    return ended
        raise AssertionError("The event has no end.")

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=f"{self._address}/gradio_api", timeout=30)
