"""The settings and presets, at the right."""

from __future__ import annotations

from dataclasses import astuple, replace
from html import escape
from typing import Any

import gradio as gr

from outrider.pipelines import ACCEPTANCES, EXACT, InvalidOption

from ..assistant import Assistant
from ..core.settings import Settings
from ..core.values import storable
from ..i18n.translations import translate, words_of
from ..store.history import History
from .answer_controls import AnswerControls
from .buttons import Deletion
from .error_toast import errors_as_toasts, toast
from .event_options import QUEUED
from .model_choice import ModelChoice

LONGEST_NAME = 100


class SettingsPanel:
    """Adds its components to the current block. `values` are those of the fields of `Settings` after `mode`."""

    def __init__(self, assistant: Assistant, history: History) -> None:
        self._assistant = assistant
        self._history = history
        # Gradio encrypts it with a secret that must not change between starts. It is not confidential in the browser.
        self._browser = gr.BrowserState(None, storage_key="outrider-settings", secret="outrider-settings")
        default, context = Settings(), assistant.pipeline.max_context
        drafts = len(assistant.pipeline.modes) > 1
        with gr.Sidebar(position="right", width=300, open=False, elem_id="settings"):
            self.model = ModelChoice(assistant)
            self._presets = gr.Dropdown(
                [], label=translate("preset"), info=translate("preset_hint"), allow_custom_value=True, elem_id="preset"
            )
            with gr.Row(elem_id="preset-buttons"):
                self._keep = gr.Button(translate("keep_preset"), size="sm", min_width=80)
                self._deletion = Deletion("drop_preset", "preset-")
            self.system = gr.Textbox(
                default.system, label=translate("system"), info=translate("system_hint"), lines=3, elem_id="system"
            )
            self._heading = gr.HTML()
            self.values: list[Any] = [
                gr.Slider(0, 2, default.temperature, step=0.05, label=translate("temperature")),
                gr.Slider(0, 200, default.top_k, step=1, label=translate("top_k")),
                gr.Slider(0.05, 1, default.top_p, step=0.05, label=translate("top_p")),
                gr.Slider(0, 0.95, default.min_p, step=0.05, label=translate("min_p")),
                gr.Slider(0.5, 2, default.repetition_penalty, step=0.05, label=translate("repetition_penalty")),
                gr.Number(default.seed, precision=0, label=translate("seed_label"), info=translate("seed_hint")),
                gr.Slider(1, context, min(512, context), step=1, label=translate("max_new_tokens")),
                gr.Slider(0, 16, default.draft_tokens, step=1, label=translate("draft_tokens"), visible=drafts),
                gr.Radio(
                    [(translate(f"acceptance_{rule}"), rule) for rule in ACCEPTANCES],
                    value=default.acceptance,
                    label=translate("acceptance"),
                    info=translate("acceptance_hint"),
                    visible=assistant.pipeline.plans,
                    elem_id="acceptance",
                ),
                self.system,
            ]
        self._acceptance = self.values[-2]
        self._dependent = self.values[-4:-1]  # their ranges depend on the model

    def connect(self, blocks: gr.Blocks, mode: gr.Radio) -> None:
        applied = self._connect_presets(blocks, [mode, *self.values])
        self._connect_browser(blocks, [mode, *self.values], applied)

    def connect_switch(self, switches: gr.State, controls: AnswerControls) -> gr.events.Dependency:
        """Update what depends on the model when another one was loaded."""

        def switched(mode: str, max_new_tokens: Any, request: gr.Request) -> tuple[Any, ...]:
            return controls.offered(mode), *self._ranged(max_new_tokens), *self.model.listed(request)

        inputs, outputs = [controls.mode, self._dependent[0]], [controls.mode, *self._dependent, *self.model.outputs]
        return switches.change(switched, inputs, outputs, preprocess=False, **QUEUED)

    def _connect_browser(self, blocks: gr.Blocks, kept: list[Any], applied: gr.events.Dependency) -> None:
        """The browser reads its local storage before the page is loaded, and writes it when a setting changes."""
        keep: dict[str, Any] = {"fn": None, "inputs": kept, "outputs": self._browser, "js": "(...values) => [values]"}
        loaded = blocks.load(self._restored, [self._browser, *kept], kept, preprocess=False, **QUEUED)
        loaded.then(**keep, **QUEUED)
        # The rule of acceptance changes when the page is drawn, before what was kept is read.
        gr.on([each.input if each is self._acceptance else each.change for each in kept], **keep, **QUEUED)
        applied.then(**keep, **QUEUED)

    def _connect_presets(self, blocks: gr.Blocks, kept: list[Any]) -> gr.events.Dependency:
        """Returns the event that applies a preset."""
        presets, deletion = self._presets, self._deletion
        blocks.load(self._listed, None, [presets, self._heading], **QUEUED)
        applied = presets.select(self._apply, [presets, kept[0]], kept, preprocess=False, **QUEUED)
        self._keep.click(self._kept, [presets, *kept], presets, preprocess=False, **QUEUED)
        deletion.connect(self._existing, presets, preprocess=False)
        dropped = [presets, *deletion.outputs]
        deletion.sure.click(self._dropped, deletion.pending, dropped, preprocess=False, **QUEUED)
        presets.change(deletion.reset, None, deletion.outputs, **QUEUED)
        return applied

    def _ranged(self, max_new_tokens: Any) -> tuple[gr.Slider, gr.Slider, gr.Radio]:
        """Updates of the dependent controls for the current model."""
        drafts, context = len(self._assistant.pipeline.modes) > 1, self._assistant.pipeline.max_context
        tokens = max_new_tokens if isinstance(max_new_tokens, (int, float)) else context
        limit, length = gr.Slider(maximum=context, value=min(tokens, context)), gr.Slider(visible=drafts)
        if self._assistant.pipeline.plans:
            return limit, length, gr.Radio(visible=True)
        return limit, length, gr.Radio(visible=False, value=EXACT)  # OpenVINO GenAI knows no other rule

    def _restored(self, browser: Any, *now: Any) -> tuple[Any, ...]:
        """The settings that the browser stored last. Invalid ones leave the controls as they are."""
        try:
            settings = Settings.of(*browser)
        except (InvalidOption, TypeError):  # nothing was stored yet, or by another release
            return (gr.skip(),) * len(now)
        return self._shown(settings, now[0])

    def _shown(self, settings: Settings, mode: Any) -> tuple[Any, ...]:
        """The values of the controls for these settings. A mode that the model lacks leaves the current one."""
        pipeline = self._assistant.pipeline
        tokens = min(settings.max_new_tokens, pipeline.max_context)
        offered = settings.mode if settings.mode in pipeline.modes else mode
        acceptance = settings.acceptance if pipeline.plans else EXACT
        return astuple(replace(settings, mode=offered, max_new_tokens=tokens, acceptance=acceptance))

    def _listed(self, request: gr.Request) -> tuple[gr.Dropdown, str]:
        return self._dropdown(None, request), f"<h2>{words_of(request)('sampling')}</h2>"

    def _apply(self, name: Any, mode: Any, request: gr.Request) -> tuple[Any, ...]:
        with errors_as_toasts(request):
            return self._shown(self._history.preset(_named(name, request)), mode)

    def _kept(self, request: gr.Request, name: Any, *values: Any) -> gr.Dropdown:
        with errors_as_toasts(request):
            named = _named(name, request)[:LONGEST_NAME]
            self._history.keep_preset(named, Settings.of(*values))
            gr.Info(escape(words_of(request)("preset_kept", name=named), quote=False))
            return self._dropdown(named, request)

    def _existing(self, request: gr.Request, name: Any) -> str:
        with errors_as_toasts(request):
            if (named := _named(name, request)) not in self._history.preset_names():
                raise toast("no_such_preset", request)
            return named

    def _dropped(self, name: str, request: gr.Request) -> tuple[Any, ...]:
        with errors_as_toasts(request):
            self._history.drop_preset(name)
            return self._dropdown(None, request), *self._deletion.reset()

    def _dropdown(self, name: str | None, request: gr.Request) -> gr.Dropdown:
        with errors_as_toasts(request):
            return gr.Dropdown(choices=list(self._history.preset_names()), value=name)


def _named(name: Any, request: gr.Request) -> str:
    if not isinstance(name, str) or not name.strip():
        raise toast("no_preset_name", request)
    return storable(name)
