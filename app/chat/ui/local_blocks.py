"""Gradio's blocks, whose events take files only from the folder of uploads."""

from __future__ import annotations

from typing import Any

import gradio as gr
from gradio_client.utils import is_file_obj, is_http_url_like, traverse


class LocalBlocks(gr.Blocks):
    """Gradio downloads every address that a request gives as a file, whatever component it is for."""

    async def preprocess_data(self, block_fn: Any, inputs: Any, state: Any, explicit_call: bool = False) -> Any:
        """Raises gr.Error for a file that is an address."""
        traverse(inputs, _refuse_address, is_file_obj)
        return await super().preprocess_data(block_fn, inputs, state, explicit_call)


def _refuse_address(file: dict[str, Any]) -> dict[str, Any]:
    if is_http_url_like(file["path"]):
        raise gr.Error("Files are not fetched from other hosts.", print_exception=False)
    for value in file.values():  # `traverse` goes no further down
        traverse(value, _refuse_address, is_file_obj)
    return file
