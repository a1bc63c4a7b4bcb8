"""Row selection: which rows of the hidden states go on, by indices that are fed with each pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ..errors import UnsupportedModel


def gather_wanted_rows(model: ov.Model, folder: Path) -> Any:
    """Compute logits for the wanted rows only: of a prompt, just the last token needs them. Returns the node that gives
    their indices, the input "rows".

    Raises UnsupportedModel for a model without an output "logits".
    """
    result = next((r for r in model.get_results() if "logits" in r.input_value(0).get_names()), None)
    node = None if result is None else result.input_value(0).get_node()
    while node is not None and node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node() if node.get_input_size() else None
    if node is None:
        raise UnsupportedModel(f"{folder} has no output named logits that a matrix product yields.")
    (rows,) = index_inputs(model, "rows")
    node.input(0).replace_source_output(gathered(node.input_value(0), rows))
    model.validate_nodes_and_infer_types()
    return rows


def index_inputs(model: ov.Model, *names: str) -> list[Any]:
    """New inputs int64 [rows]."""
    inputs = [ops.parameter([-1], ov.Type.i64, name=name) for name in names]
    for node, name in zip(inputs, names, strict=True):
        node.output(0).set_names({name})
    model.add_parameters(inputs)
    return inputs


def gathered(states: Any, rows: Any) -> Any:
    """The rows of hidden states [rows, ...] that the indices name."""
    return ops.gather(states, rows, ops.constant(0, dtype=np.int64)).output(0)
