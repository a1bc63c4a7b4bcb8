"""The first layers of a model compute what a slow decoder does that leaves out the others, and stand for large ones."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from outrider.pipelines.errors import BrokenPair, UnsupportedModel
from outrider.pipelines.model import first_layers, tuning
from outrider.pipelines.model.exactness import READING, is_exact
from outrider.pipelines.model.first_layers import FirstLayers
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.processor import PRECISION
from outrider.pipelines.model.target import Rows, Window

from .layers import Llama

PRECISELY = {"KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


@pytest.fixture(scope="module")
def target(embedded_pair: Path) -> Path:
    return embedded_pair / "target"


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("exact", [True, False])
def test_the_layers_behind_them_are_left_out(target: Path, number: int, exact: bool) -> None:
    llama, text = Llama(target), [random.Random(number).randrange(4096) for _ in range(24)]
    model = FirstLayers(target, 2, number, PRECISELY, exact)
    (logits,) = model.forward([Window(text, 0, [0, 1], num_rows=len(text))])
    assert not np.allclose(logits, llama.logits(text, len(text)), atol=0.1)
    llama.num_layers = number
    assert np.allclose(logits, llama.logits(text, len(text)), atol=2e-3)


def test_they_are_the_same_where_products_are_summed_in_parts(target: Path) -> None:
    """The projection, too."""
    window = Window(list(range(24)), 0, [0, 1], num_rows=24)
    models = [FirstLayers(target, 2, 4, PRECISELY, longest=longest) for longest in (None, 128)]
    whole, in_parts = (model.forward([window])[0] for model in models)
    assert not np.array_equal(whole, in_parts)
    assert np.allclose(whole, in_parts, atol=2e-3)


def test_they_have_as_much_less_weights_and_cache_and_keep_their_bits(target: Path) -> None:
    whole, part = PagedModel(target, 2), FirstLayers(target, 2, 3)
    assert part.weight_bytes < whole.weight_bytes
    assert part.cache_bytes == whole.cache_bytes / 2
    assert part.longest_inner == whole.longest_inner
    part.rows = Rows(2, 64, 2)
    assert is_exact(part)


@pytest.mark.parametrize(
    ("light_bytes", "share", "number"), [(1, 0.0, 4), (1, 0.8, 5), (1, 1.0, None), (1, 2.0, None), (10**9, 0.0, None)]
)
def test_a_large_model_is_tried_with_some_of_its_six_layers(target, monkeypatch, light_bytes, share, number) -> None:
    size = (target / "openvino_model.bin").stat().st_size
    monkeypatch.setattr(first_layers, "TRIED_BYTES", share * size)
    assert first_layers.first_layers(target, light_bytes) == number


def test_a_large_model_that_does_not_say_how_many_layers_it_has_is_broken(target: Path, tmp_path: Path) -> None:
    (tmp_path / "openvino_model.bin").symlink_to(target / "openvino_model.bin")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BrokenPair, match="num_hidden_layers"):
        first_layers.first_layers(tmp_path, 1)


def test_a_model_whose_layers_cannot_be_told_apart_is_tried_as_a_whole(target: Path, monkeypatch) -> None:
    monkeypatch.setattr("outrider.pipelines.model.taps.ADDS", 3)
    monkeypatch.setattr(first_layers, "TRIED_BYTES", 0)
    with pytest.raises(UnsupportedModel, match="tried as a whole"):
        FirstLayers(target, 1, 4)
    assert first_layers.first_layers(target, 1) is None


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
def test_a_large_target_is_found_to_be_as_exact_by_its_first_layers(target: Path, monkeypatch, exact: bool) -> None:
    """The embedded one, taken for large: the whole is compiled once."""
    given = {PRECISION: "f32"}
    small, expected = tuning.load_target(target, 4, given, exact)
    compile_model, num_caches = ov.Core.compile_model, []

    def noting(core: ov.Core, model: ov.Model, *given: object) -> ov.CompiledModel:
        num_caches.append(sum("key_cache" in port.get_any_name() for port in model.inputs))
        return compile_model(core, model, *given)

    monkeypatch.setattr(ov.Core, "compile_model", noting)
    monkeypatch.setattr(tuning, "first_layers", lambda folder, light_bytes: 4)
    large, found = tuning.load_target(target, 4, given, exact)
    assert (found.exact, found.precision, found.longest) == (expected.exact, expected.precision, expected.longest)
    assert found.rows.most >= READING
    assert num_caches.count(4) >= 1
    assert num_caches.count(6) == 1
    window = Window(list(range(8)), 0, [0], num_rows=8)
    assert np.array_equal(large.forward([window])[0], small.forward([window])[0])
