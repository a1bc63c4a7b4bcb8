"""Taps give the hidden states of chosen layers, and change no bit of the logits."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops
from openvino._offline_transformations import paged_attention_transformation

from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.graph import upstream
from outrider.pipelines.model.paged_model import PagedModel, compiled_on_cpu, read_model, read_paged_model
from outrider.pipelines.model.paged_request import BLOCK_SIZE, PagedRequest, pass_inputs
from outrider.pipelines.model.pair import Skipping
from outrider.pipelines.model.processor import PRECISION, fastest_precision
from outrider.pipelines.model.split_model import SplitModel
from outrider.pipelines.model.taps import HIDDEN_STATES, add_taps, gather_before_feed_forward, residual_streams
from outrider.pipelines.model.target import Rows, Window

NUM_LAYERS, WIDTH = 6, 256  # of the embedded target
TAPS = (1, 2, 4, NUM_LAYERS)  # the last is what the projection reads
ROWS = Rows(2, 64, 2)
OWN = {PRECISION: fastest_precision()}
TEXT = range(100, 150)


def loaded(pair: Path, taps: tuple[int, ...], exact: bool = True) -> PagedModel:
    model = PagedModel(pair / "target", 16, exact=exact, taps=taps)
    model.rows = ROWS
    return model


@pytest.fixture(scope="module")
def tapped(embedded_pair: Path) -> PagedModel:
    return loaded(embedded_pair, TAPS)


@pytest.fixture(scope="module")
def plain(embedded_pair: Path) -> PagedModel:
    return loaded(embedded_pair, ())


@pytest.fixture(scope="module")
def in_own(embedded_pair: Path) -> np.ndarray:
    """The logits of a text in the processor's own precision."""
    model = PagedModel(embedded_pair / "target", 16, OWN)
    return model.forward([Window(TEXT, 0, [0, 1], len(TEXT))])[0].copy()


@pytest.mark.parametrize("seed", range(4))
def test_logits_are_bitwise_those_of_a_model_without_taps_however_passes_are_cut(tapped, plain, seed):
    rng = random.Random(seed)
    texts = [[rng.randrange(4096) for _ in range(60)] for _ in range(3)]
    places = [0] * len(texts)
    while any(place < len(text) for place, text in zip(places, texts, strict=True)):
        windows = []
        for i, text in enumerate(texts):
            size = min(rng.choice([1, 2, 5, 20]), len(text) - places[i])
            if size:
                windows.append(Window(text[places[i] : places[i] + size], places[i], [2 * i, 2 * i + 1], size))
                places[i] += size
        expected = [logits.copy() for logits in plain.forward(windows)]
        for one, other in zip(expected, tapped.forward(windows), strict=True):
            assert np.array_equal(one, other)
        assert [states.shape for states in tapped.hidden_states()] == [
            (len(window.tokens), len(TAPS) * WIDTH) for window in windows
        ]
    assert plain.hidden_states() == []


def test_hidden_states_do_not_depend_on_the_cut_nor_on_how_many_logits_are_wanted(tapped):
    rng = random.Random(0)
    text = [rng.randrange(4096) for _ in range(50)]
    tapped.forward([Window(text, 0, [0, 1])])
    whole = tapped.hidden_states()[0].copy()
    assert np.isfinite(whole).all()
    assert len(np.unique(whole[:, 0])) > 40
    start = 0
    while start < len(text):
        end = min(len(text), start + rng.choice([1, 2, 7]))
        rejected = [rng.randrange(4096) for _ in range(rng.choice([0, 3]))]
        tapped.forward([Window([7] * 9, 0, [5]), Window([*text[start:end], *rejected], start, [2, 3])])
        assert np.array_equal(tapped.hidden_states()[1][: end - start], whole[start:end])
        start = end


def test_every_layer_adds_twice_to_the_residual_stream(embedded_pair):
    model = read_paged_model(ov.Core(), embedded_pair / "target")
    streams = residual_streams(model)
    assert len(streams) == 2 * NUM_LAYERS
    names = [stream.get_node().get_friendly_name() for stream in streams[1::2]]
    assert all(f"layers.{layer}/" in name for layer, name in enumerate(names))


def test_what_the_projection_reads_is_the_last_layers_output_normed(embedded_pair):
    model = loaded(embedded_pair, (NUM_LAYERS - 1, NUM_LAYERS), exact=False)
    rng = random.Random(2)
    model.forward([Window([rng.randrange(4096) for _ in range(20)], 0, [0])])
    last, projected = np.split(model.hidden_states()[0].astype(np.float64), 2, axis=1)
    scale = projected * np.sqrt((last**2).mean(1, keepdims=True)) / last  # the norm's weights, of each row
    assert np.allclose(scale, np.median(scale, axis=0), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("taps", [(0,), (1, 2, 4), (NUM_LAYERS - 1,), (NUM_LAYERS,)])
def test_logits_are_those_of_a_model_without_taps_in_the_processors_own_precision_too(embedded_pair, in_own, taps):
    """In bf16 OpenVINO rounds less what is close to an output."""
    model = PagedModel(embedded_pair / "target", 16, OWN, taps=taps)
    assert np.array_equal(model.forward([Window(TEXT, 0, [0, 1], len(TEXT))])[0], in_own)


@pytest.mark.parametrize("taps", [(), (1, NUM_LAYERS)])
@pytest.mark.parametrize("layers", [(1,), (2, 3), tuple(range(3, NUM_LAYERS))])
def test_logits_are_those_of_a_model_in_one_part_in_the_processors_own_precision_too(
    embedded_pair, in_own, layers, taps
):
    model = SplitModel(embedded_pair / "target", 16, Skipping(layers), OWN, taps=taps)
    assert np.array_equal(model.forward([Window(TEXT, 0, [0, 1], len(TEXT))])[0], in_own)


def test_the_last_feed_forward_part_is_computed_for_the_wanted_rows_alone(embedded_pair, plain):
    folder, core = embedded_pair / "target", ov.Core()
    model = read_model(core, folder)
    paged_attention_transformation(model)
    model.add_results([ops.result(gather_before_feed_forward(model, folder))])
    products = [node for node in model.get_ops() if node.get_type_name() == "MatMul"]
    behind = [node for node in products if any(each.get_friendly_name() == "rows" for each in upstream(node.output(0)))]
    assert len(behind) == 4  # three of the feed-forward part, and the projection
    request = PagedRequest(compiled_on_cpu(core, model, folder, {}), 16, folder)
    window = Window(TEXT, 0, [0, 1], 2)
    inputs, context = pass_inputs([window], [len(TEXT)], BLOCK_SIZE, request.spare_block)
    logits, states = request.infer({**inputs, "max_context_len": context})
    np.testing.assert_allclose(logits.reshape(2, -1), plain.forward([window])[0], rtol=1e-3, atol=1e-3)
    assert states.size == 2 * WIDTH


def test_layers_that_there_are_not_are_refused(embedded_pair):
    with pytest.raises(UnsupportedModel, match=r"hidden states of layer 7, and .* has 6: the head was made for"):
        loaded(embedded_pair, (1, 2, 7))


def test_a_model_without_a_residual_stream_of_two_sums_a_layer_is_refused():
    ids = ops.parameter([-1, 8], ov.Type.f32, name="ids")
    weights = ops.constant(np.ones((8, 8), np.float32))
    inner = ops.add(ids, ops.matmul(ids, weights, False, True))
    logits = ops.matmul(inner, weights, False, True).output(0)
    logits.set_names({"logits"})
    model = ov.Model([ops.result(logits)], [ids])
    with pytest.raises(UnsupportedModel, match="0 layers and 1 sums"):
        add_taps(model, (0,), Path("model"))
    assert all(HIDDEN_STATES not in output.get_names() for output in model.outputs)
