"""Changes to the IR of a head on disk."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import openvino as ov

from ..convert import MODEL


def rewrite(folder: Path, change: Callable[[ov.Model], object]) -> None:
    """Read the IR in a folder, change it, and write it in its own place."""
    path, changed = folder / MODEL, folder / f"changed_{MODEL}"
    model = ov.Core().read_model(path)
    change(model)
    ov.save_model(model, changed, compress_to_fp16=False)
    del model  # it maps the files that are replaced next
    gc.collect()
    for suffix in (".xml", ".bin"):
        changed.with_suffix(suffix).replace(path.with_suffix(suffix))
