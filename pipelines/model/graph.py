"""Graph: what the rewrites of models look for in their graphs, and the selection of rows that they insert."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ..errors import UnsupportedModel


def logits_of(model: ov.Model) -> ov.Output:
    """What a model yields as "logits". Raises StopIteration if it has no such output."""
    return next(r.input_value(0) for r in model.get_results() if "logits" in r.input_value(0).get_names())


def projection_of(logits: ov.Output) -> Any:
    """The matrix product that yields logits. Raises StopIteration if none does."""
    return next(node for node in _first_inputs(logits) if node.get_type_name() == "MatMul")


def upstream(*outputs: ov.Output) -> Iterator[Any]:
    """The nodes that outputs are computed from, the nearest first."""
    waiting, seen = deque(outputs), set[str]()
    while waiting:
        node = waiting.popleft().get_node()
        if node.get_name() not in seen:
            seen.add(node.get_name())
            yield node
            waiting += node.input_values()


def weight_bytes(product: ov.Node) -> int:
    """The size of the weights that a matrix product multiplies states with."""
    return sum(node.get_byte_size() for node in upstream(product.input_value(1)) if node.get_type_name() == "Constant")


def gather_wanted_rows(model: ov.Model, folder: Path) -> Any:
    """Compute logits for the wanted rows only: of a prompt, just the last token needs them. Returns the node that gives
    their indices, the input "rows".

    Raises UnsupportedModel for a model without an output "logits".
    """
    try:
        projection = projection_of(logits_of(model))
    except StopIteration as error:
        raise UnsupportedModel(f"{folder} has no output named logits that a matrix product yields.") from error
    (rows,) = index_inputs(model, "rows")
    projection.input(0).replace_source_output(gathered(projection.input_value(0), rows))
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


def _first_inputs(output: ov.Output) -> Iterator[Any]:
    """The node of an output, that of its first input, and so on."""
    node: Any = output.get_node()
    yield node
    while node.get_input_size():
        node = node.input_value(0).get_node()
        yield node
