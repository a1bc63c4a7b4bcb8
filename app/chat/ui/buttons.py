"""Buttons that are hidden at times, and a delete button that asks for confirmation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gradio as gr

from ..i18n.translations import translate
from .event_options import QUEUED

# Unlike False, it keeps the button mounted: a slow browser can miss the update that would mount it.
HIDDEN: Literal["hidden"] = "hidden"


def toggled(*flags: bool) -> tuple[gr.Button, ...]:
    """An update of a button for each flag: True shows it, False hides it."""
    return tuple(gr.Button(visible=flag or HIDDEN) for flag in flags)


class Deletion:
    """A button that asks for confirmation before it deletes. Adds its components to the current block.

    pending: what the question is about, even if something else is selected when it is answered.
    sure: the button that confirms.
    """

    def __init__(self, label: str, name: str = "") -> None:
        """`label` is the key of a phrase; `name` is a prefix of the element ids."""
        self.pending = gr.State(None)
        self.delete = gr.Button(translate(label), size="sm", min_width=80, elem_id=f"{name}delete")
        self.keep = gr.Button(translate("keep"), size="sm", visible=HIDDEN, min_width=80, elem_id=f"{name}keep")
        self.sure = gr.Button(
            translate("delete_sure"), variant="stop", size="sm", visible=HIDDEN, min_width=80, elem_id=f"{name}sure"
        )
        self.outputs = [self.pending, self.delete, self.sure, self.keep]

    def connect(self, chosen: Callable[..., Any], inputs: Any, **options: Any) -> None:
        """`chosen` returns what is to be deleted, and raises gr.Error if nothing is selected."""

        def ask(request: gr.Request, *values: Any) -> tuple[Any, ...]:
            return chosen(request, *values), *toggled(False, True, True)

        self.delete.click(ask, inputs, self.outputs, **QUEUED, **options)
        self.keep.click(self.reset, None, self.outputs, **QUEUED, **options)

    def reset(self) -> tuple[Any, ...]:
        return None, *toggled(True, False, False)
