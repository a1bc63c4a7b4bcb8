"""Long products in parts: the numbers that plain arithmetic gives, with the same bits in short and long passes."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from outrider.pipelines.model.partial_sums import longest_inner, split_products
from outrider.pipelines.model.processor import limited_properties

from .weights import GROUP, KINDS, weights_of

OUTER = 48


def model_of(weights: ov.Output, width: int, bias: np.ndarray | None = None) -> ov.Model:
    states = ops.parameter([-1, width], ov.Type.f32, name="states")
    product = ops.matmul(states, weights, False, True)
    if bias is not None:
        product = ops.add(product, ops.constant(bias))
    return ov.Model([ops.result(product)], [states])


def compiled(model: ov.Model) -> ov.CompiledModel:
    return ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"} | limited_properties())


def inner_dimensions(model: ov.Model) -> list[int]:
    products = [node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"]
    return [product.input_value(1).get_partial_shape()[1].get_length() for product in products]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "longest", "num_parts"), [(256, 128, 2), (352, 100, 4), (96, 64, 2)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_parts_give_what_plain_arithmetic_gives(kind, width, longest, num_parts, has_bias):
    rng = np.random.default_rng(width)
    weights, values = weights_of(kind, OUTER, width, rng)
    bias = rng.standard_normal((1, OUTER)).astype(np.float32) if has_bias else None
    model, states = model_of(weights, width, bias), rng.standard_normal((6, width)).astype(np.float32)
    assert longest_inner(model) == width
    whole = compiled(model)(states)[0].copy()
    assert split_products(model, longest) == 1
    parts = inner_dimensions(model)
    assert (len(parts), sum(parts)) == (num_parts, width)
    assert max(parts) <= longest
    if kind.endswith("4"):
        assert all(part % GROUP == 0 for part in parts), "a group is torn"
    expected = states.astype(np.float64) @ values.T.astype(np.float64) + (0 if bias is None else bias)
    error = np.abs(compiled(model)(states)[0] - expected).max()
    assert error <= max(1e-3, 3 * np.abs(whole - expected).max())


@pytest.mark.parametrize(("width", "longest"), [(128, 128), (64, 4096)])
def test_products_that_are_short_enough_stay_as_they_are(width, longest):
    model = model_of(weights_of("i8", OUTER, width, np.random.default_rng(0))[0], width)
    assert split_products(model, longest) == 0
    assert inner_dimensions(model) == [width]


def test_weights_that_are_computed_stay_as_they_are():
    """Their columns cannot be cut when the graph is loaded."""
    weights = ops.sin(ops.constant(np.ones((OUTER, 256), np.float32)))
    model = model_of(weights.output(0), 256)
    assert split_products(model, 64) == 0
    assert inner_dimensions(model) == [256]


@pytest.mark.parametrize("kind", ["i8", "i4"])
def test_passes_of_two_rows_and_more_give_the_same_bits(kind):
    """Which products with so long an inner dimension do not, on processors without VNNI."""
    rng = np.random.default_rng(0)
    model = model_of(weights_of(kind, 512, 8192, rng)[0], 8192)
    split_products(model, 4096)
    product, states = compiled(model), rng.standard_normal((80, 8192)).astype(np.float32)
    expected = product(states)[0].copy()
    for rows in range(2, 80):
        assert np.array_equal(product(states[:rows])[0], expected[:rows]), rows
