"""Long products in parts: the numbers that plain arithmetic gives, with the same bits in short and long passes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.pair import Skipping
from outrider.pipelines.model.partial_sums import longest_inner, split_products
from outrider.pipelines.model.processor import limited_properties
from outrider.pipelines.model.target import Window
from outrider.pipelines.model.tuning import Compilation

from .weights import GROUP, KINDS, weights_of

OUTER, WIDTH = 48, 8192


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
    model = model_of(weights_of(kind, 512, WIDTH, rng)[0], WIDTH)
    split_products(model, 4096)
    product, states = compiled(model), rng.standard_normal((80, WIDTH)).astype(np.float32)
    expected = product(states)[0].copy()
    for rows in range(2, 80):
        assert np.array_equal(product(states[:rows])[0], expected[:rows]), rows


@pytest.fixture(scope="module")
def wide(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded draft model with random feed-forward layers whose last product has the inner dimension WIDTH."""
    folder, rng = tmp_path_factory.mktemp("wide"), np.random.default_rng(0)
    shutil.copytree(embedded_pair / "draft", folder, dirs_exist_ok=True)
    model = ov.Core().read_model(embedded_pair / "draft" / "openvino_model.xml")
    for node in model.get_ordered_ops():
        name = node.get_friendly_name()
        if node.get_type_name() == "MatMul" and ".mlp." in name:
            outer, inner = node.input_value(1).get_shape()
            shape = (outer, WIDTH) if ".down_proj" in name else (WIDTH, inner)
            node.input(1).replace_source_output(weights_of("i8", *shape, rng)[0])
    model.validate_nodes_and_infer_types()
    for suffix in ("xml", "bin"):
        (folder / f"openvino_model.{suffix}").unlink()
    ov.save_model(model, folder / "openvino_model.xml")
    return folder


def logits_of(model: PagedModel, tokens: Sequence[int]) -> np.ndarray:
    return model.forward([Window(tokens, 0, range(2), len(tokens))])[0].copy()


@pytest.mark.parametrize("skipping", [None, Skipping((1,))], ids=["whole", "in parts for drafts"])
def test_a_model_is_compiled_with_its_long_products_in_parts(wide: Path, skipping, monkeypatch):
    compile_model, made = ov.Core.compile_model, []

    def noting(*given):
        made.append(compile_model(*given))
        return made[-1]

    monkeypatch.setattr(ov.Core, "compile_model", noting)
    logits, nums_products = [], []
    for longest in (None, WIDTH // 2):
        made.clear()
        model = Compilation(True, "f32", longest).load(wide, 4, {}, skipping=skipping)
        assert model.longest_inner == WIDTH
        nodes = [node for each in made for node in each.get_runtime_model().get_ops()]
        kinds = [node.get_rt_info()["layerType"].astype(str) for node in nodes]
        nums_products.append(kinds.count("FullyConnected"))
        logits.append(logits_of(model, range(1, 41)))
    assert nums_products[1] == nums_products[0] + 3, "one more in each of three layers"
    assert np.corrcoef(logits[0].ravel(), logits[1].ravel())[0, 1] > 0.9999


def test_passes_of_two_rows_and_more_of_a_model_in_parts_give_the_same_bits(wide: Path):
    """Within AVX2, passes of few rows give others where the same products are whole."""

    def alike(longest: int | None) -> list[int]:
        model, tokens = PagedModel(wide, 4, longest=longest), range(1, 41)
        expected = logits_of(model, tokens)
        return [n for n in range(2, 40) if np.array_equal(logits_of(model, tokens[:n]), expected[:n])]

    in_parts = alike(WIDTH // 2)
    assert in_parts == [*range(2, 40)]
    if os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2":
        assert len(alike(None)) < len(in_parts)
