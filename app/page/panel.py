"""The settings, at the right."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ..assistant import Assistant
from ..settings import Settings
from ..wording import translate


class SettingsPanel:
    """Lays itself out where it is made. `values` are the components of the fields of `Settings` behind its mode."""

    def __init__(self, assistant: Assistant) -> None:
        default, context = Settings(), assistant.pipeline.max_context
        drafts = len(assistant.pipeline.modes) > 1
        with gr.Sidebar(position="right", width=300, open=False, elem_id="settings"):
            self.heading = gr.HTML("<h2>Sampling</h2>")
            self.values: list[Any] = [
                gr.Slider(0, 2, default.temperature, step=0.05, label=translate("temperature")),
                gr.Slider(0, 200, default.top_k, step=1, label=translate("top_k")),
                gr.Slider(0.05, 1, default.top_p, step=0.05, label=translate("top_p")),
                gr.Slider(0, 0.95, default.min_p, step=0.05, label=translate("min_p")),
                gr.Slider(0.5, 2, default.repetition_penalty, step=0.05, label=translate("repetition_penalty")),
                gr.Number(default.seed, precision=0, minimum=0, label=translate("seed_label")),
                gr.Slider(1, context, min(512, context), step=1, label=translate("max_new_tokens")),
                gr.Slider(0, 16, default.draft_tokens, step=1, label=translate("draft_tokens"), visible=drafts),
            ]
