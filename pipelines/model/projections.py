"""Joined projections: queries, keys and values from one matrix product instead of three, with the same bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import openvino as ov
from openvino import opset15 as ops
from openvino.op import Constant

NUM_JOINED = 3  # not the two products of a gated network, which are much larger and gain nothing
NUM_STACKED = {"Convert": 1, "Reshape": 1, "Multiply": 2, "Subtract": 2}  # inputs that have the weights' rows
FEWEST_BITS = 8  # smaller types are packed, and NumPy has none for them


def join_projections(model: ov.Model) -> int:
    """Join every three products of the same states with weights, quantized or not; returns how many joins were made.

    Products are left as they are if their weights differ in type, if a bias follows (the device adds it in the same
    step), or if they do not look as optimum-intel and NNCF write them.
    """
    products = defaultdict(list)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul" and _is_linear(node):
            states = node.input_value(0)
            products[states.get_node().get_friendly_name(), states.get_index()].append(node)
    joined = [_join(group) for group in products.values() if len(group) == NUM_JOINED]
    model.validate_nodes_and_infer_types()
    return sum(joined)


def _is_linear(node: ov.Node) -> bool:
    of_weights = node.get_attributes() == {"transpose_a": False, "transpose_b": True}
    return of_weights and all(reader.get_node().get_type_name() != "Add" for reader in _readers(node))


def _readers(node: ov.Node) -> list[ov.Input]:
    return list(node.output(0).get_target_inputs())


def _join(products: Sequence[ov.Node]) -> bool:
    """Replace several products by one, if their weights can be stacked."""
    weights = _stacked([product.input_value(1) for product in products])
    if weights is None:
        return False
    product = ops.matmul(products[0].input_value(0), weights, False, True)
    product.set_friendly_name(f"{products[0].get_friendly_name()}/joined")
    sizes = [product.input_value(1).get_shape()[0] for product in products]
    parts = ops.variadic_split(product, ops.constant(-1, dtype=np.int64), ops.constant(np.array(sizes, np.int64)))
    for i, each in enumerate(products):
        for reader in _readers(each):
            reader.replace_source_output(parts.output(i))
    return True


def _stacked(weights: Sequence[ov.Output]) -> ov.Output | None:
    """A subgraph that yields the rows of all `weights`, built like each of theirs from constants, conversions, scales,
    zero points and reshapes. None if theirs differ in more than the number of rows, or have other operations."""
    nodes = [output.get_node() for output in weights]
    first, kind = nodes[0], nodes[0].get_type_name()
    if not all(_is_alike(a, b) for a, b in pairwise(nodes)):
        return None
    if kind == "Constant":
        return _stacked_constants(nodes)
    sources = [_stacked([node.input_value(i) for node in nodes]) for i in range(NUM_STACKED.get(kind, 0))]
    if not sources or None in sources:
        return None
    made: ov.Node
    if kind == "Convert":
        made = ops.convert(*sources, first.get_output_element_type(0).to_string())
    elif kind == "Reshape":
        shape = [sum(node.get_output_shape(0)[0] for node in nodes), *list(first.get_output_shape(0))[1:]]
        made = ops.reshape(*sources, ops.constant(np.array(shape, np.int64)), False)
    else:
        made = (ops.multiply if kind == "Multiply" else ops.subtract)(*sources)
    return made.output(0)


def _is_alike(a: ov.Node, b: ov.Node) -> bool:
    return (
        a.get_type_name() == b.get_type_name()
        and a.get_output_element_type(0) == b.get_output_element_type(0)
        and len(a.get_output_shape(0)) == len(b.get_output_shape(0)) > 0
        and list(a.get_output_shape(0))[1:] == list(b.get_output_shape(0))[1:]
    )


def _stacked_constants(constants: Sequence[ov.Node]) -> ov.Output:
    rows = [constant.get_output_shape(0)[0] for constant in constants]
    shape = ov.Shape([sum(rows), *list(constants[0].get_output_shape(0))[1:]])
    data = [constant.data for constant in constants]
    kind = constants[0].get_output_element_type(0)
    stacked = ov.Tensor(kind, shape)
    if kind.bitwidth < FEWEST_BITS:
        stacked.data.reshape(-1)[:] = np.concatenate([each.reshape(-1) for each in data])
    else:
        stacked.data[...] = np.concatenate(data)
    return Constant(stacked).output(0)
