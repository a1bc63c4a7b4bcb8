"""Loading another pair, or on another device."""

from __future__ import annotations

from html import escape

import gradio as gr

from outrider.pipelines.devices.devices import device_names

from ..assistant import Assistant
from ..i18n.translations import translate, words_of
from .error_toast import errors_as_toasts, toast
from .event_options import QUEUED


class ModelChoice:
    """Adds its components to the current block."""

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        self._pair = gr.Dropdown([], label=translate("pair"), info=translate("pair_hint"), elem_id="pair")
        with gr.Row(elem_id="load-row"):
            self._device = gr.Dropdown(
                list(dict.fromkeys([assistant.pipeline.device, *device_names()])),
                value=assistant.pipeline.device,
                label=translate("device"),
                min_width=100,
                elem_id="device",
            )
            self._load = gr.Button(translate("load"), size="sm", min_width=70, scale=0, elem_id="load")
        self._unusable = gr.HTML(elem_id="unusable")
        self.outputs = [self._pair, self._unusable]

    def connect(self, blocks: gr.Blocks) -> gr.events.Dependency:
        """Returns the event that begins to load a model."""
        blocks.load(self.listed, None, self.outputs, **QUEUED)
        return self._load.click(self._switch, [self._pair, self._device], None, **QUEUED)

    def listed(self, request: gr.Request) -> tuple[gr.Dropdown, str]:
        """Updates of `outputs`: the pairs that can be chosen, and below them those that cannot, with the reason."""
        with errors_as_toasts(request):
            choices = self._assistant.choices()
            usable = [choice.name for choice in choices if choice.reason is None]
            refused = [(choice.name, choice.reason) for choice in choices if choice.reason]
            refused += [(f"{name} ({device})", reason) for name, device, reason in self._assistant.refusals]
            words = words_of(request)
            items = (f"<li><b>{escape(name)}</b>: {escape(words.error(reason))}</li>" for name, reason in refused)
            reasons = "".join(items)
            said = f"<p>{words('unusable')}</p><ul>{reasons}</ul>" if reasons else ""
            shown = self._assistant.name if self._assistant.name in usable else None
            return gr.Dropdown(choices=usable, value=shown), said

    def _switch(self, name: str | None, device: str, request: gr.Request) -> None:
        with errors_as_toasts(request):
            usable = (choice for choice in self._assistant.choices() if choice.reason is None)
            choice = next((choice for choice in usable if choice.name == name), None)
            if choice is None:
                raise toast("choose_pair", request)
            self._assistant.switch(choice, device)
