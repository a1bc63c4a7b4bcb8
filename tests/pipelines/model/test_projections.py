"""One product in place of three: the numbers that plain arithmetic gives, from weights of every kind."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from outrider.pipelines.model import paged_model
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.processor import limited_properties
from outrider.pipelines.model.projections import join_projections
from outrider.pipelines.model.target import Window

from ..real import NUM_BLOCKS
from .weights import KINDS, weights_of

WIDTH = 64


def model_of(weights: list[ov.Output], biases: list[np.ndarray] | None = None) -> ov.Model:
    states = ops.parameter([-1, WIDTH], ov.Type.f32, name="states")
    products = [ops.matmul(states, each, False, True) for each in weights]
    if biases is not None:
        products = [ops.add(product, ops.constant(bias)) for product, bias in zip(products, biases, strict=True)]
    return ov.Model([ops.result(ops.relu(product)) for product in products], [states])


def answers(model: ov.Model, states: np.ndarray) -> list[np.ndarray]:
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"} | limited_properties())
    return [np.array(value) for value in compiled(states).values()]


def num_products(model: ov.Model) -> int:
    return sum(node.get_type_name() == "MatMul" for node in model.get_ops())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(64, 64, 64), (128, 32, 32), (5, 3, 7)], ids=str)
def test_the_joined_product_gives_what_plain_arithmetic_gives(kind, sizes):
    rng = np.random.default_rng(sum(sizes))
    weights, values = zip(*(weights_of(kind, rows, WIDTH, rng) for rows in sizes), strict=True)
    model = model_of(list(weights))
    states = rng.standard_normal((6, WIDTH)).astype(np.float32)
    apart = answers(model, states)
    assert join_projections(model) == 1
    assert num_products(model) == 1
    for joined, before, value in zip(answers(model, states), apart, values, strict=True):
        expected = np.maximum(states.astype(np.float64) @ value.T.astype(np.float64), 0)
        error = np.abs(joined - expected).max()
        assert error <= max(1e-4, 1.5 * np.abs(before - expected).max())


@pytest.mark.parametrize(
    "kinds", [("f32", "f32"), ("i8", "i8", "i4"), ("f16", "f32", "f16"), ("i4", "u4", "i4"), ("i8",) * 4], ids=str
)
def test_products_that_cannot_be_one_stay_as_they_are(kinds):
    rng = np.random.default_rng(0)
    model = model_of([weights_of(kind, 16, WIDTH, rng)[0] for kind in kinds])
    states = rng.standard_normal((3, WIDTH)).astype(np.float32)
    before = answers(model, states)
    assert join_projections(model) == 0
    assert num_products(model) == len(kinds)
    assert all(map(np.array_equal, before, answers(model, states)))


def test_products_with_biases_stay_as_they_are():
    """The device adds a bias within the product; after a joined one it would be a step of its own."""
    rng = np.random.default_rng(0)
    weights = [weights_of("i8", 16, WIDTH, rng)[0] for _ in range(3)]
    model = model_of(weights, [rng.standard_normal((1, 16)).astype(np.float32) for _ in weights])
    assert join_projections(model) == 0


def test_the_embedded_target_computes_the_same_with_fewer_products(embedded_pair, monkeypatch):
    tokens = np.random.default_rng(0).integers(0, 1000, 120).tolist()
    seen, joined = [], []
    for join in (lambda model: joined.append(join_projections(model)), lambda model: 0):
        monkeypatch.setattr(paged_model, "join_projections", join)
        model = PagedModel(embedded_pair / "target", NUM_BLOCKS)
        seen.append(model.forward([Window(tokens, 0, range(4), len(tokens))])[0].copy())
    assert joined[0] > 1
    assert np.array_equal(*seen)
