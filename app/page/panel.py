"""The settings and presets, at the right."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import gradio as gr

from ..assistant import Assistant
from ..history import History
from ..settings import Settings
from ..wording import translate, words_of
from .guard import refused, told
from .models import ModelChoice


class SettingsPanel:
    """Lays itself out where it is made. `values` are the components of the fields of `Settings` behind its mode."""

    def __init__(self, assistant: Assistant, history: History) -> None:
        self._history = history
        default, context = Settings(), assistant.pipeline.max_context
        drafts = len(assistant.pipeline.modes) > 1
        with gr.Sidebar(position="right", width=300, open=False, elem_id="settings"):
            self.model = ModelChoice(assistant)
            self._presets = gr.Dropdown(
                [], label=translate("preset"), info=translate("preset_hint"), allow_custom_value=True, elem_id="preset"
            )
            with gr.Row(elem_id="preset-buttons"):
                self._keep = gr.Button(translate("keep_preset"), size="sm", min_width=80)
                self._drop = gr.Button(translate("drop_preset"), size="sm", min_width=80)
            system = gr.Textbox(
                default.system, label=translate("system"), info=translate("system_hint"), lines=3, elem_id="system"
            )
            self._heading = gr.HTML()
            self.values: list[Any] = [
                gr.Slider(0, 2, default.temperature, step=0.05, label=translate("temperature")),
                gr.Slider(0, 200, default.top_k, step=1, label=translate("top_k")),
                gr.Slider(0.05, 1, default.top_p, step=0.05, label=translate("top_p")),
                gr.Slider(0, 0.95, default.min_p, step=0.05, label=translate("min_p")),
                gr.Slider(0.5, 2, default.repetition_penalty, step=0.05, label=translate("repetition_penalty")),
                gr.Number(default.seed, precision=0, minimum=0, label=translate("seed_label")),
                gr.Slider(1, context, min(512, context), step=1, label=translate("max_new_tokens")),
                gr.Slider(0, 16, default.draft_tokens, step=1, label=translate("draft_tokens"), visible=drafts),
                system,
            ]
        self.dependent = self.values[-3:-1]  # those whose range the model decides

    def ranged(self, assistant: Assistant, max_new_tokens: float) -> tuple[gr.Slider, gr.Slider]:
        """The dependent ones, as the model of now has them."""
        drafts, context = len(assistant.pipeline.modes) > 1, assistant.pipeline.max_context
        return gr.Slider(maximum=context, value=min(max_new_tokens, context)), gr.Slider(visible=drafts)

    def connect(self, blocks: gr.Blocks, queued: dict[str, Any]) -> None:
        blocks.load(self._listed, None, [self._presets, self._heading], **queued)
        self._presets.select(self._apply, self._presets, self.values, **queued)
        self._keep.click(self._kept, [self._presets, *self.values], self._presets, **queued)
        self._drop.click(self._dropped, self._presets, self._presets, **queued)

    def _listed(self, request: gr.Request) -> tuple[gr.Dropdown, str]:
        return self._dropdown(None, request), f"<h2>{words_of(request)('sampling')}</h2>"

    def _apply(self, name: str, request: gr.Request) -> tuple[Any, ...]:
        with told(request):
            settings = self._history.presets().get(name)
            return (gr.skip(),) * len(self.values) if settings is None else astuple(settings)[1:]

    def _kept(self, request: gr.Request, name: str | None, *values: Any) -> gr.Dropdown:
        with told(request):
            self._history.keep_preset(_named(name, request), Settings(Settings().mode, *values))
            return self._dropdown(name, request)

    def _dropped(self, name: str | None, request: gr.Request) -> gr.Dropdown:
        with told(request):
            self._history.drop_preset(_named(name, request))
            return self._dropdown(None, request)

    def _dropdown(self, name: str | None, request: gr.Request) -> gr.Dropdown:
        with told(request):
            return gr.Dropdown(choices=list(self._history.presets()), value=name)


def _named(name: str | None, request: gr.Request) -> str:
    if not (name and name.strip()):
        raise refused("no_preset_name", request)
    return name
