"""Parts of the IR of a head, and changes to it on disk."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ..convert import MODEL


def rows_of(name: str, width: int) -> Any:
    """An input, float32 [rows, width]."""
    node = ops.parameter([-1, width], ov.Type.f32, name=name)
    node.output(0).set_names({name})
    return node


def product(rows: Any, weight: NDArray[np.float32]) -> Any:
    """What a linear layer with this weight makes of rows."""
    return ops.matmul(rows, ops.constant(weight), False, True)


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


def halve(folder: Path) -> None:
    """Store the weights of matrix products in fp16, and nothing else: the frequencies of the rotary embedding have to
    be exact."""

    def change(model: ov.Model) -> None:
        for node in model.get_ordered_ops():
            if node.get_type_name() == "MatMul":
                weights = node.input_value(1).get_node()
                if weights.get_type_name() == "Constant" and weights.get_element_type() == ov.Type.f32:
                    half = ops.constant(weights.get_data().astype(np.float16), name=weights.get_friendly_name())
                    node.input(1).replace_source_output(ops.convert(half, "f32").output(0))

    rewrite(folder, change)
