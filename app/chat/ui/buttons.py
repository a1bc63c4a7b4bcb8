"""Buttons that come and go, and one that asks before it deletes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gradio as gr

from ..i18n.translations import translate
from .event_options import QUEUED

AWAY: Literal["hidden"] = "hidden"  # mounted, unlike False: a slow browser has lost the update that was to mount one


def toggled(*flags: bool) -> tuple[gr.Button, ...]:
    """Updates of as many buttons: True shows one, False takes it away."""
    return tuple(gr.Button(visible=flag or AWAY) for flag in flags)


class Deletion:
    """A button that asks before it deletes. Lays itself out where it is made.

    doomed: what is asked about, whatever is chosen by the answer. sure: the button that deletes it.
    """

    def __init__(self, label: str, name: str = "") -> None:
        """`label` is the word on the button; `name` tells its elements from those of another one."""
        self.doomed = gr.State(None)
        self.delete = gr.Button(translate(label), size="sm", min_width=80, elem_id=f"{name}delete")
        self.keep = gr.Button(translate("keep"), size="sm", visible=AWAY, min_width=80, elem_id=f"{name}keep")
        self.sure = gr.Button(
            translate("delete_sure"), variant="stop", size="sm", visible=AWAY, min_width=80, elem_id=f"{name}sure"
        )
        self.outputs = [self.doomed, self.delete, self.sure, self.keep]

    def connect(self, chosen: Callable[..., Any], inputs: Any, **options: Any) -> None:
        """`chosen` gives what is to be deleted, and raises gr.Error where that is nothing."""

        def ask(request: gr.Request, *values: Any) -> tuple[Any, ...]:
            return chosen(request, *values), *toggled(False, True, True)

        self.delete.click(ask, inputs, self.outputs, **QUEUED, **options)
        self.keep.click(self.spared, None, self.outputs, **QUEUED, **options)

    def spared(self) -> tuple[Any, ...]:
        return None, *toggled(True, False, False)
