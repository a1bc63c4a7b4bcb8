"""The box at the bottom: the prompt, its files, and the earlier prompt that it replaces."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from ..core.attachment import LARGEST_TOGETHER, read_attachments
from ..core.conversation import File, Turn
from ..i18n.translations import Words, translate, words_of
from .buttons import HIDDEN, toggled
from .error_toast import errors_as_toasts
from .event_options import QUEUED, QUICK
from .rendering import files_html

if TYPE_CHECKING:
    from .wiring import Wiring

# Escape stops an answer, unless it closes a list or ends the composition of a character. Gradio itself makes Enter send
# and Shift+Enter begin a line in a box with one line.
KEYS = """
document.addEventListener("keydown", (event) => {
  const closes = event.isComposing || event.target.getAttribute?.("aria-expanded") === "true";
  if (event.key === "Escape" && !closes) document.querySelector("#stop")?.click();
}, true);
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """The files of the prompt.

    editing: the id of the turn whose prompt is being edited.
    aside: what was in the box before that, text and files. It comes back after the edit.
    """

    files: tuple[File, ...] = ()
    editing: int | None = None
    aside: tuple[str, tuple[File, ...]] = ("", ())

    def after_edit(self) -> tuple[str, Entry]:
        """What is in the box once this entry was sent or given up."""
        text, files = self.aside
        return text, Entry(files)

    def with_edit(self, text: str, turn: Turn, node: int) -> tuple[str, Entry]:
        """What is in the box once a turn is edited; `text` was there before."""
        return turn.prompt, Entry(turn.files, node, (text, self.files) if self.editing is None else self.aside)

    def with_prompt(self, text: str, turn: Turn) -> tuple[str, Entry]:
        """What is in the box once the prompt of a turn came back to it: that prompt before the `text` that was there.

        During an edit, both wait until it is over.
        """
        if self.editing is not None:
            typed, files = self.aside
            return text, replace(self, aside=(joined(turn.prompt, typed), united(turn.files, files)))
        return joined(turn.prompt, text), replace(self, files=united(turn.files, self.files))

    def shown_with(self, text: str, nodes: Collection[int]) -> tuple[str, Entry]:
        """What is in the box when only these turns are shown: an edit of another one is a prompt like any."""
        if self.editing is None or self.editing in nodes:
            return text, self
        aside, files = self.aside
        return joined(text, aside), Entry(united(self.files, files))


@dataclass(frozen=True, slots=True)
class Returned:
    """A turn that failed, whose prompt goes back into the box. `behind` is the id of the turn that it replaced."""

    turn: Turn
    behind: int | None


class Composer:
    """Adds its components to the current block. `outputs` are the components that `composed` updates."""

    def __init__(self) -> None:
        self.entry = gr.State(Entry())
        self.returned = gr.State(None)
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
        self._cancel.click(self._leave_edit, self.entry, self.outputs, **QUEUED)

    def _attach(self, paths: Sequence[str], entry: Entry, request: gr.Request) -> tuple[Any, ...]:
        with errors_as_toasts(request):
            return composed("", replace(entry, files=read_attachments(paths, entry.files)), words_of(request))[1:]

    def _drop_files(self, entry: Entry, request: gr.Request) -> tuple[Any, ...]:
        return composed("", replace(entry, files=()), words_of(request))[1:]

    def take_back(
        self, text: str | None, entry: Entry, returned: Returned | None, request: gr.Request
    ) -> tuple[Any, ...]:
        """Put the prompt of a turn that failed back into the box, and keep what has been typed since."""
        if returned is None:
            return *untouched(), None
        if returned.behind is None:
            back = entry.with_prompt(text or "", returned.turn)
        else:
            back = entry.with_edit(text or "", returned.turn, returned.behind)
        return *composed(*back, words_of(request)), None

    def _leave_edit(self, entry: Entry, request: gr.Request) -> tuple[Any, ...]:
        return composed(*entry.after_edit(), words_of(request))


def composed(text: str, entry: Entry, words: Words) -> tuple[Any, ...]:
    """Updates of `Composer.outputs` for a prompt and its files."""
    notes = [f'<p class="editing">{words("editing")}</p>'] if entry.editing is not None else []
    if entry.files:
        limit = words("attach_limit", limit=LARGEST_TOGETHER // 1000)
        notes.append(f"{files_html(entry.files, words)}<small>{limit}</small>")
    return text, entry, "".join(notes), *toggled(bool(entry.files), entry.editing is not None)


def joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text.strip())


def united(some: tuple[File, ...], others: tuple[File, ...]) -> tuple[File, ...]:
    return (*some, *(file for file in others if file not in some))


def untouched() -> tuple[Any, ...]:
    """Updates of `Composer.outputs` that change nothing."""
    return (gr.skip(),) * 5
