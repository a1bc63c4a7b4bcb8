"""The buttons of messages in the conversation, and text that leaves the page: to the clipboard or into a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gradio as gr

from .event_options import ANSWERING, QUEUED, TURNS

if TYPE_CHECKING:
    from .wiring import Wiring

LONGEST_NAME = 80  # characters of a file name, which file systems limit to 255 bytes

# Gradio's chatbot strips all attributes but classes, so they say what a button does and to which turn.
LISTENER = """
document.addEventListener("click", (event) => {
  const button = event.target.closest("#chat button.message-button");
  if (!button) return;
  const named = (prefix) => [...button.classList].find((name) => name.startsWith(prefix)).slice(prefix.length);
  const action = named("action-");
  trigger(action === "receipt" ? "submit" : "select", {action: action, turn: Number(named("turn-"))});
});
"""

# navigator.clipboard is missing in a page that comes from another machine over plain HTTP.
DELIVER = """
(parcel) => {
  if (!parcel) return;
  const {name, text} = JSON.parse(parcel);
  if (name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], {type: "text/plain;charset=utf-8"}));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } else if (navigator.clipboard) {
    navigator.clipboard.writeText(text).then(() => document.dispatchEvent(new Event("copied")));
  } else {
    const box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    if (document.execCommand("copy")) document.dispatchEvent(new Event("copied"));
    box.remove();
  }
}
"""


class Outbox:
    """Takes the result of `to_clipboard` or `to_file` as the output `box` of an event; `deliver` comes after it."""

    def __init__(self) -> None:
        self.box = gr.Textbox(visible=False)

    def deliver(self, event: gr.events.Dependency) -> None:
        event.success(None, self.box, None, js=DELIVER, **QUEUED)


class MessageButtons:
    """Listens to the buttons that `rendering` draws under messages. Adds its components to the current block."""

    def __init__(self) -> None:
        self._listener = gr.HTML(elem_id="message-button-listener", js_on_load=LISTENER)

    def connect(self, wiring: Wiring, outbox: Outbox) -> None:
        events, outputs = wiring.events, [*wiring.composer.outputs, wiring.view, wiring.chatbot, outbox.box]
        seen = [*wiring.seen, wiring.composer.box, wiring.composer.entry]
        clicked = self._listener.select(events.message_button, seen, outputs, **TURNS)
        outbox.deliver(clicked)
        clicked.then(**wiring.refresh)
        wiring.render_on(self._listener.submit(events.receipt, wiring.seen, wiring.shown, **ANSWERING).then)


def to_clipboard(text: str) -> str:
    """A text that the browser copies to the clipboard."""
    return json.dumps({"name": None, "text": text})


def to_file(name: str, text: str) -> str:
    """A file that the browser saves, under a name that is valid on every system."""
    stem, dot, ending = name.rpartition(".")
    clean = "".join(c if c.isalnum() or c in " -_" else " " for c in stem)
    stem = " ".join(clean.split())[:LONGEST_NAME].strip() or "conversation"
    return json.dumps({"name": f"{stem}{dot}{ending}", "text": text})
