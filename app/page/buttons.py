"""Buttons that come and go."""

from __future__ import annotations

from typing import Literal

import gradio as gr

AWAY: Literal["hidden"] = "hidden"  # mounted, unlike False: a slow browser has lost the update that was to mount one


def toggled(*flags: bool) -> tuple[gr.Button, ...]:
    """Updates of as many buttons: True shows one, False takes it away."""
    return tuple(gr.Button(visible=flag or AWAY) for flag in flags)
