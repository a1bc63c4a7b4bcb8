"""Partial sums: long matrix products split along the inner dimension.

Without VNNI the kernels for inner dimensions above 4,096 give other bits with more than four rows.
"""

from __future__ import annotations

import math
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops
from openvino.op import Constant

PACKED = 4  # bits


def split_products(model: ov.Model, longest: int) -> int:
    """Split products of states with weights along inner dimensions above `longest`, and add up the parts; returns how
    many products were split.

    Parts have at most `longest` columns and are as equal as the weights' quantization groups allow. Products whose
    weights do not look as optimum-intel and NNCF write them are left as they are.
    """
    products = [node for node in model.get_ordered_ops() if _inner(node) > longest]
    num_split = sum(_split(product, longest) for product in products)
    model.validate_nodes_and_infer_types()
    return num_split


def longest_inner(model: ov.Model) -> int:
    """The longest inner dimension of a product of states with weights; 0 if there is none."""
    return max(map(_inner, model.get_ordered_ops()), default=0)


def _inner(node: ov.Node) -> int:
    """The inner dimension of a product with weights [outer, inner]; 0 for any other node."""
    if node.get_type_name() != "MatMul" or node.get_attributes() != {"transpose_a": False, "transpose_b": True}:
        return 0
    weights = node.input_value(1).get_partial_shape()
    return weights[1].get_length() if len(weights) == 2 and weights.is_static else 0


def _split(product: ov.Node, longest: int) -> bool:
    weights, inner = product.input_value(1), _inner(product)
    group = _group_size(weights)
    if group == 0 or inner % group:
        return False
    num_parts = -(-inner // max(longest - longest % group, group))
    bounds = [inner // group * i // num_parts * group for i in range(num_parts + 1)]
    parts = [_columns(weights, begin, end) for begin, end in pairwise(bounds)]
    sizes = np.array([end - begin for begin, end in pairwise(bounds)], np.int64)
    states = ops.variadic_split(product.input_value(0), ops.constant(-1, dtype=np.int64), ops.constant(sizes))
    sums = [ops.matmul(states.output(i), part, False, True) for i, part in enumerate(parts)]
    for i, each in enumerate(sums):
        each.set_friendly_name(f"{product.get_friendly_name()}/part{i}")
    readers = product.output(0).get_target_inputs()
    total = reduce(ops.add, sums)
    for reader in readers:
        reader.replace_source_output(total.output(0))
    return True


def _group_size(weights: ov.Output) -> int:
    """How many neighbouring columns of weights [outer, inner] share a scale; 1 if a row has one; 0 if the weights are
    not made from a constant by conversions, zero points, scales and reshapes, or have fewer bits."""
    node = weights.get_node()
    match node.get_type_name():
        case "Constant":
            return 1 if node.get_output_element_type(0).bitwidth in (PACKED, 8, 16, 32) else 0
        case "Convert" | "Multiply" | "Subtract":
            return _group_size(node.input_value(0))
        case "Reshape":
            before = node.input_value(0)
            is_grouped = len(before.get_partial_shape()) == 3
            return before.get_shape()[2] if is_grouped and _group_size(before) else 0
    return 0


def _columns(weights: ov.Output, begin: int, end: int) -> ov.Output:
    """A subgraph that yields the columns from `begin` to `end` of weights [outer, inner] or [outer, groups, group]."""
    node = weights.get_node()
    made: ov.Node
    match node.get_type_name():
        case "Constant":
            return _constant_columns(node, begin, end)
        case "Convert":
            source = _columns(node.input_value(0), begin, end)
            made = ops.convert(source, node.get_output_element_type(0).to_string())
        case "Reshape":
            group = node.input_value(0).get_shape()[2]
            source = _columns(node.input_value(0), begin // group, end // group)
            shape = np.array([node.get_output_shape(0)[0], end - begin], np.int64)
            made = ops.reshape(source, ops.constant(shape), False)
        case kind:
            sources = [_columns(node.input_value(i), begin, end) for i in range(2)]
            made = (ops.multiply if kind == "Multiply" else ops.subtract)(*sources)
    return made.output(0)


def _constant_columns(constant: ov.Node, begin: int, end: int) -> ov.Output:
    """The columns of a constant whose second dimension is columns or groups; if it has one value for all, it stays
    whole."""
    shape, kind = list(constant.get_output_shape(0)), constant.get_output_element_type(0)
    if len(shape) < 2 or shape[1] == 1:
        return constant.output(0)
    part = ov.Tensor(kind, ov.Shape([shape[0], end - begin, *shape[2:]]))
    if kind.bitwidth == PACKED:
        columns = _unpacked(constant.data, math.prod(shape)).reshape(shape)[:, begin:end].reshape(-1)
        _bytes(part.data)[:] = columns[0::2] | np.append(columns[1::2], [0] * (columns.size % 2)).astype(np.uint8) << 4
    else:
        part.data[...] = constant.data[:, begin:end]
    return Constant(part).output(0)


def _unpacked(packed: NDArray[Any], number: int) -> NDArray[np.uint8]:
    """`number` values of four bits each, packed two to a byte."""
    pairs = _bytes(packed)
    return np.stack([pairs & 15, pairs >> 4], axis=1).reshape(-1)[:number]


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)
