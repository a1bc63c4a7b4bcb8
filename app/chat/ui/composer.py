"""The box at the bottom: the prompt, its files, and the earlier prompt that it replaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from ..core.attachment import LARGEST_TOGETHER, read_attachments
from ..core.conversation import File
from ..i18n.translations import Words, translate, words_of
from .buttons import HIDDEN, toggled
from .error_toast import errors_as_toasts
from .event_options import QUEUED, QUICK
from .rendering import files_html

if TYPE_CHECKING:
    from .wiring import Wiring

# Escape stops an answer. Gradio itself makes Enter send and Shift+Enter begin a line in a box with one line.
KEYS = """
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelector("#stop")?.click();
});
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """The files of the prompt. `editing` is the id of the turn whose prompt is being edited."""

    files: tuple[File, ...] = ()
    editing: int | None = None


class Composer:
    """Adds its components to the current block. `outputs` are the components that `composed` updates."""

    def __init__(self) -> None:
        self.entry = gr.State(Entry())
        with gr.Row(elem_id="notes"):
            self._notes = gr.HTML(elem_id="entry-notes")
            self._detach = gr.Button(translate("detach"), size="sm", min_width=60, visible=HIDDEN, elem_id="detach")
            self._cancel = gr.Button(
                translate("cancel_edit"), size="sm", min_width=60, visible=HIDDEN, elem_id="cancel-edit"
            )
        with gr.Row(elem_id="entry"):
            self._upload = gr.UploadButton(
                translate("attach"),
                file_count="multiple",
                type="filepath",
                elem_id="attach",
                min_width=38,
                scale=0,
            )
            self.box = gr.Textbox(
                label=translate("prompt"),
                show_label=False,
                container=False,
                placeholder=translate("ask"),
                lines=1,
                max_lines=12,
                autofocus=True,
                elem_id="prompt",
            )
            self.send = gr.Button(translate("send"), variant="primary", elem_id="send", min_width=84, scale=0)
            self.stop = gr.Button(
                translate("stop"), variant="stop", elem_id="stop", min_width=84, scale=0, visible=HIDDEN
            )
        gr.HTML(elem_id="keys", js_on_load=KEYS)
        self.buttons = [self.send, self.stop]
        self.outputs = [self.box, self.entry, self._notes, self._detach, self._cancel]

    def connect(self, wiring: Wiring) -> None:
        for trigger in (self.box.submit, self.send.click):
            wiring.answer_on(trigger, wiring.events.ask, [self.box, self.entry])
        self.stop.click(wiring.events.stop, wiring.seen, wiring.shown, **QUICK)
        beside = self.outputs[1:]
        self._upload.upload(self._attach, [self._upload, self.entry], beside, **QUEUED)
        self._detach.click(self._drop_files, self.entry, beside, **QUEUED)
        self._cancel.click(self._leave_edit, None, self.outputs, **QUEUED)

    def _attach(self, paths: Sequence[str], entry: Entry, request: gr.Request) -> tuple[Any, ...]:
        with errors_as_toasts(request):
            return composed("", replace(entry, files=read_attachments(paths, entry.files)), words_of(request))[1:]

    def _drop_files(self, entry: Entry, request: gr.Request) -> tuple[Any, ...]:
        return composed("", replace(entry, files=()), words_of(request))[1:]

    def _leave_edit(self, request: gr.Request) -> tuple[Any, ...]:
        return composed("", Entry(), words_of(request))


def composed(text: str, entry: Entry, words: Words) -> tuple[Any, ...]:
    """Updates of `Composer.outputs` for a prompt and its files."""
    notes = [f'<p class="editing">{words("editing")}</p>'] if entry.editing is not None else []
    if entry.files:
        limit = words("attach_limit", limit=LARGEST_TOGETHER // 1000)
        notes.append(f"{files_html(entry.files, words)}<small>{limit}</small>")
    return text, entry, "".join(notes), *toggled(bool(entry.files), entry.editing is not None)


def untouched() -> tuple[Any, ...]:
    """Updates of `Composer.outputs` that change nothing."""
    return (gr.skip(),) * 5
