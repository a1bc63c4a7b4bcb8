"""Weights as an export writes them, of every kind, and their values."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset15 as ops
from openvino.op import Constant

GROUP = 32
KINDS = ("f32", "f16", "i8", "u8", "i4", "u4")


def weights_of(kind: str, rows: int, width: int, rng: np.random.Generator) -> tuple[ov.Output, np.ndarray]:
    """Weights [rows, width] as an export writes them, and their values."""
    if kind == "f32":
        values = rng.standard_normal((rows, width)).astype(np.float32)
        return ops.constant(values).output(0), values
    if kind == "f16":
        values = rng.standard_normal((rows, width)).astype(np.float16)
        return ops.convert(ops.constant(values), "f32").output(0), values.astype(np.float32)
    groups = width // GROUP
    shape, scales = ([rows, width], [rows, 1]) if kind.endswith("8") else ([rows, groups, GROUP], [rows, groups, 1])
    least, most = {"i8": (-127, 127), "u8": (0, 255), "i4": (-7, 7), "u4": (0, 15)}[kind]
    numbers = rng.integers(least, most + 1, shape)
    zeros = rng.integers(least, most + 1, scales) if kind.startswith("u") else None
    scale = rng.uniform(0.01, 0.02, scales).astype(np.float16)
    node = ops.convert(_constant(numbers, kind), "f16")
    if zeros is not None:
        node = ops.subtract(node, ops.convert(_constant(zeros, kind), "f16"))
    node = ops.multiply(node, ops.constant(scale))
    if len(shape) == 3:
        node = ops.reshape(node, ops.constant(np.array([rows, width], np.int64)), False)
    values = (numbers - (0 if zeros is None else zeros)) * scale.astype(np.float32)
    return ops.convert(node, "f32").output(0), values.reshape(rows, width).astype(np.float32)


def _constant(numbers: np.ndarray, kind: str) -> ov.Node:
    flat = numbers.reshape(-1).astype(np.int8 if kind.startswith("i") else np.uint8)
    tensor = ov.Tensor(getattr(ov.Type, kind), ov.Shape(numbers.shape))
    if kind.endswith("4"):
        low, high = (flat[i::2].view(np.uint8) & 15 for i in (0, 1))
        tensor.data.reshape(-1).view(np.uint8)[:] = low | high << 4
    else:
        tensor.data.reshape(-1)[:] = flat
    return Constant(tensor)
