"""Gradio's blocks, whose events take files only from the folder of uploads, and are not counted."""

from __future__ import annotations

import os
import sys
from typing import Any

import gradio as gr

ADDRESSES = ("http:", "https:")


class LocalBlocks(gr.Blocks):
    """Gradio downloads every address that a request gives as a file, whatever component it is for. And after every
    event it computes statistics of all events, which takes 10 ms while a model may be running and which are never
    read."""

    def queue(self, *given: Any, **options: Any) -> LocalBlocks:
        os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", str(sys.maxsize))  # in events; Gradio reads it here
        super().queue(*given, **options)
        return self

    async def preprocess_data(self, block_fn: Any, inputs: Any, state: Any, explicit_call: bool = False) -> Any:
        """Raises gr.Error for a file that is an address."""
        _refuse_addresses(inputs)
        return await super().preprocess_data(block_fn, inputs, state, explicit_call)


def _refuse_addresses(value: Any) -> None:
    if isinstance(value, dict):
        if str(value.get("path", "")).lower().startswith(ADDRESSES):
            raise gr.Error("Files are not fetched from other hosts.", print_exception=False)
        for part in value.values():
            _refuse_addresses(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            _refuse_addresses(part)
