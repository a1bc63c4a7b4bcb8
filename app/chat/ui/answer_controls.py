"""The controls above the composer: the drafting mode, and whether answers are coloured."""

from __future__ import annotations

import gradio as gr

from outrider.pipelines import AUTO, MODES

from ..assistant import Assistant
from ..core.settings import Settings
from ..i18n.translations import translate


class AnswerControls:
    """Adds its components to the current block."""

    def __init__(self, assistant: Assistant) -> None:
        self._assistant = assistant
        modes = assistant.pipeline.modes
        with gr.Row(elem_id="controls"):
            self.mode = gr.Radio(
                self._choices(),
                value=Settings().mode if Settings().mode in modes else modes[0],
                label=translate("mode"),
                show_label=False,
                container=False,
                elem_id="mode",
            )
            self.coloured = gr.Checkbox(True, label=translate("colour"), container=False, elem_id="coloured")
            self.legend = gr.HTML(elem_id="legend")

    def offered(self, mode: str) -> gr.Radio:
        """An update with the modes of the current model, `mode` selected if it is one of them."""
        modes = self._assistant.pipeline.modes
        return gr.Radio(choices=self._choices(), value=mode if mode in modes else modes[-1])

    def _choices(self) -> list[tuple[str, str]]:
        modes = self._assistant.pipeline.modes
        return [(translate(f"mode_{mode}"), mode) for mode in sorted(MODES, key=AUTO.__ne__) if mode in modes]
