"""A target in parts gives the whole one's bits, whatever drafts leave in its cache, and runs its first part once."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.paged_model import PagedModel, read_paged_model
from outrider.pipelines.model.pair import Skipping
from outrider.pipelines.model.parts import cut
from outrider.pipelines.model.split_model import ShortModel, SplitModel
from outrider.pipelines.model.target import Rows, Window

from .layers import Llama

NUM_LAYERS, VOCABULARY = 6, 4096  # of the embedded target
TAPS = (1, 2, 4, NUM_LAYERS)  # the last is what the projection reads
ROWS = Rows(2, 64, 2)
LENGTH = 60
WAYS = [Skipping((2, 4)), Skipping((1, 2, 5)), Skipping((3, 4, 5), is_exit=True)]
PRECISELY = {"KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


@pytest.fixture(scope="module")
def target(embedded_pair: Path) -> Path:
    return embedded_pair / "target"


@pytest.fixture(scope="module")
def whole(target: Path) -> PagedModel:
    model = PagedModel(target, 16, taps=TAPS)
    model.rows = ROWS
    return model


@pytest.fixture(scope="module", params=WAYS, ids=str)
def split(target: Path, request) -> SplitModel:
    model = SplitModel(target, 16, request.param, taps=TAPS)
    model.rows = ROWS
    return model


@pytest.fixture(scope="module")
def llama(target: Path) -> Llama:
    return Llama(target)


def texts_of(rng: random.Random, number: int = 3) -> list[list[int]]:
    return [[rng.randrange(VOCABULARY) for _ in range(LENGTH)] for _ in range(number)]


def drafted(model: SplitModel, window: Window, rng: random.Random) -> int:
    """Draft as a request would that is to be verified with a window; returns how many of its first tokens were."""
    number = rng.randint(1, len(window.tokens))
    begin = 0
    while begin < number:
        end = min(number, begin + rng.choice([1, 1, 3]))
        model.draft([Window(window.tokens[begin:end], window.start + begin, window.blocks, 1)])
        begin = end
    if rng.random() < 0.3:  # then others in the place of the last one
        wrong = [(window.tokens[number - 1] + 1) % VOCABULARY, 5]
        model.draft([Window(wrong, window.start + number - 1, window.blocks, 2)])
        number -= 1
    return number


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_logits_and_taps_are_bitwise_those_of_the_whole_model_with_drafts_or_without(split, whole, seed):
    rng = random.Random(seed)
    texts = texts_of(rng)
    places = [0] * len(texts)
    while any(place < LENGTH for place in places):
        windows = []
        for i, text in enumerate(texts):
            if size := min(rng.choice([1, 2, 5, 20]), LENGTH - places[i]):
                rejected = [rng.randrange(VOCABULARY) for _ in range(rng.choice([0, 0, 3]))]
                tokens = [*text[places[i] : places[i] + size], *rejected]
                windows.append(Window(tokens, places[i], [2 * i, 2 * i + 1], len(tokens)))
                places[i] += size
        before, took = split.num_taken_over, 0
        for window in windows:
            took += drafted(split, window, rng) if rng.random() < 0.6 else 0
        expected = [logits.copy() for logits in whole.forward(windows)]
        for one, other in zip(expected, split.forward(windows), strict=True):
            assert np.array_equal(one, other)
        for one, other in zip(whole.hidden_states(), split.hidden_states(), strict=True):
            assert np.array_equal(one, other)
        assert split.num_taken_over - before == took


def test_the_first_part_runs_no_row_twice(split, monkeypatch):
    fed: list[int] = []
    first = split._chain.first
    infer = first.infer
    monkeypatch.setattr(first, "infer", lambda inputs: fed.append(len(inputs["input_ids"])) or infer(inputs))
    text = texts_of(random.Random(1), 1)[0]
    split.forward([Window(text[:40], 0, [0, 1])])
    for i in range(40, 44):
        split.draft([Window([text[i]], i, [0, 1])])
    split.forward([Window(text[40:45], 40, [0, 1], 5)])
    padded = ROWS.fewest  # a pass of one row
    assert fed == [40, *(padded,) * 4, padded]
    split.draft([Window(text[45:48], 45, [0, 1])])
    split.forward([Window(text[45:48], 45, [0, 1], 3)])  # a draft that was cut: nothing is left to run
    assert fed[6:] == [3]


def test_what_was_drafted_for_a_pass_is_not_taken_over_by_a_later_one(split, whole):
    text = texts_of(random.Random(2), 1)[0]
    window, other = Window(text[:8], 0, [0], 8), Window(text[8:12], 0, [1])
    before = split.num_taken_over
    split.draft([Window(text[:8], 0, [0])])
    split.forward([other])
    split.forward([window])
    split.draft([Window(text[:8], 0, [0])])
    split.forget_drafts()
    split.forward([window])
    ShortModel(split).blind_pass(3, 0, [0])
    split.blind_pass(3, 0, [0])
    assert split.num_taken_over == before
    split.draft([Window(text[:4], 0, [0])])
    split.forward([Window([text[1], *text[1:4]], 0, [0], 4)])
    assert split.num_taken_over == before


@pytest.mark.slow
@pytest.mark.parametrize("skipping", WAYS, ids=str)
def test_a_model_whose_products_are_all_summed_in_parts_is_split_too(target: Path, skipping: Skipping) -> None:
    """As those of wider models than the embedded one are, its projection among them."""
    whole = PagedModel(target, 4, longest=128)
    model = SplitModel(target, 4, skipping, longest=128)
    whole.rows = model.rows = ROWS
    text = texts_of(random.Random(3), 1)[0]
    window = Window(text, 0, [0, 1], num_rows=len(text))
    assert np.array_equal(model.forward([window])[0], whole.forward([window])[0])


@pytest.mark.slow
@pytest.mark.parametrize("skipping", WAYS, ids=str)
def test_a_draft_is_what_the_remaining_layers_write_behind_the_whole_models_text(target, llama, skipping):
    split = SplitModel(target, 4, skipping, PRECISELY)
    text = texts_of(random.Random(3), 1)[0]
    (logits,) = split.forward([Window(text[:30], 0, [0, 1], 30)])
    assert np.allclose(logits, llama.logits(text[:30], 30), atol=2e-3)
    for i in range(30, 33):
        (logits,) = split.draft([Window([text[i]], i, [0, 1])])
        assert np.allclose(logits, llama.logits(text[: i + 1], 30, skipping.layers)[-1:], atol=2e-3)
    (logits,) = split.draft([Window(text[33:37], 33, [0, 1], 4)])
    assert np.allclose(logits, llama.logits(text[:37], 30, skipping.layers)[-4:], atol=2e-3)
    assert not np.allclose(logits, llama.logits(text[:37], 37)[-4:], atol=0.1)
    (logits,) = split.forward([Window(text[30:35], 30, [0, 1], 5)])  # nothing of the draft is left
    assert np.allclose(logits, llama.logits(text[:35], 35)[-5:], atol=2e-3)


def test_every_product_and_cache_is_in_one_part_only(target, whole, split):
    def products(model: ov.Model) -> list[str]:
        names = [node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == "MatMul"]
        return [name for name in names if "linear" in name]

    expected = products(read_paged_model(ov.Core(), target))
    parts = cut(read_paged_model(ov.Core(), target), split.skipping.layers, False, (), target)
    assert sorted(name for part in parts for name in products(part.model)) == sorted(expected)
    assert (split.weight_bytes, split.cache_bytes) == (whole.weight_bytes, whole.cache_bytes)
    assert (ShortModel(split).weight_bytes, ShortModel(split).cache_bytes) == (0, 0)


@pytest.mark.parametrize("layers", [(0,), (2, 6), (-1,), ()])
def test_layers_that_cannot_be_skipped_are_refused(target, layers):
    with pytest.raises(UnsupportedModel, match="choose layers from 1 to 5"):
        SplitModel(target, 4, Skipping(layers))


def test_a_draft_of_more_rows_than_are_exact_is_refused(split):
    with pytest.raises(ValueError, match="at most 64"):
        split.draft([Window([0] * 65, 0, [0, 1, 2])])
