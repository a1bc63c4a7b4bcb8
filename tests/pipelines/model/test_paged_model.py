"""One pass over windows: bitwise the same logits however tokens are cut, batched, gathered and written over."""

from __future__ import annotations

import json
import random
import shutil
from itertools import accumulate
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from outrider.pipelines.errors import BrokenPair, InvalidOption, UnsupportedModel
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.processor import limited_properties
from outrider.pipelines.model.target import Window, prefill

from ..real import NUM_BLOCKS, Models

LENGTH = 200


@pytest.fixture(scope="module")
def models(models_in, embedded_pair: Path) -> Models:
    return models_in(embedded_pair)


@pytest.fixture(scope="module")
def tokens(models: Models) -> list[int]:
    return np.random.default_rng(0).integers(0, len(models.tokenizer.vocabulary), LENGTH).tolist()


@pytest.fixture(scope="module")
def whole(models: Models, tokens) -> np.ndarray:
    """The logits of every token, from as few passes as can be."""
    parts = [tokens[start : start + models.target.rows.most] for start in range(0, LENGTH, models.target.rows.most)]
    starts, blocks = accumulate(map(len, parts), initial=0), range(LENGTH // BLOCK_SIZE + 1)
    windows = [Window(part, start, blocks, len(part)) for part, start in zip(parts, starts, strict=False)]
    return np.concatenate([models.target.forward([window])[0].copy() for window in windows])


def random_cuts(rng: random.Random, longest: int) -> list[tuple[int, int]]:
    """Windows from 0 to LENGTH, many of one token; some go back over tokens that were fed before."""
    windows, start = [], 0
    while start < LENGTH:
        begin = max(0, start - rng.choice([0, 0, 0, 1, 2]))
        end = min(LENGTH, begin + max(start - begin + 1, rng.choice([1, rng.randint(1, longest)])))
        windows.append((begin, end))
        start = end
    return windows


@pytest.mark.parametrize("seed", range(12))
def test_logits_do_not_depend_on_the_cut(models: Models, tokens, whole, seed):
    """Nor on which blocks are used, nor on tokens that were written after it and then written over."""
    rng = random.Random(seed)
    blocks = rng.sample(range(NUM_BLOCKS), LENGTH // BLOCK_SIZE + 2)
    longest = models.target.rows.most - 16  # with the most rejected ones
    for begin, end in random_cuts(rng, min(rng.choice([1, 2, 4, 16, 64, LENGTH]), longest)):
        rejected = [rng.randrange(1000) for _ in range(rng.choice([0, 0, 1, 5, 16]))]
        rows = end - begin + len(rejected)
        (logits,) = models.target.forward([Window([*tokens[begin:end], *rejected], begin, blocks, rows)])
        assert np.array_equal(logits[: end - begin], whole[begin:end]), f"tokens {begin} to {end} of seed {seed}"


@pytest.mark.parametrize("seed", range(4))
def test_logits_do_not_depend_on_who_else_is_in_the_pass(models: Models, tokens, whole, seed):
    rng = random.Random(seed)
    blocks = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    size = LENGTH // BLOCK_SIZE + 1
    tables = [blocks[i * size : (i + 1) * size] for i in range(4)]
    cuts = [random_cuts(rng, min(40, models.target.rows.most // len(tables))) for _ in tables]
    while any(cuts):
        chosen = [i for i in range(4) if cuts[i] and rng.random() < 0.7] or [i for i in range(4) if cuts[i]]
        spans = [cuts[i].pop(0) for i in chosen]
        windows = [Window(tokens[a:b], a, tables[i], b - a) for i, (a, b) in zip(chosen, spans, strict=True)]
        for logits, (a, b) in zip(models.target.forward(windows), spans, strict=True):
            assert np.array_equal(logits, whole[a:b])


@pytest.mark.parametrize("num_rows", [1, 2, 7, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE + 3])
def test_logits_do_not_depend_on_what_fills_a_pass(models: Models, tokens, whole, num_rows):
    """Nor does the filling enter the cache of a sequence, however long it is."""
    blocks = range(NUM_BLOCKS - LENGTH // BLOCK_SIZE - 1, NUM_BLOCKS)  # up to the last, after which it is written
    for begin, end in ((0, 40), (40, 41), (41, 44), (44, 46)):
        room = models.target.rows.most - (end - begin)
        windows = [Window(tokens[begin:end], begin, blocks, end - begin), Window.filling(min(num_rows, room))]
        logits, nothing = models.target.forward(windows)
        assert np.array_equal(logits, whole[begin:end])
        assert not len(nothing)


def test_tokens_fed_one_by_one_need_no_slots_but_their_own(models: Models, tokens, whole):
    """Alone and several sequences at once, each with as many blocks as its tokens fill to the last slot."""
    for tables in ([[5, 2]], [[5, 2], [0, 7], [3, 1]]):
        for position in range(2 * BLOCK_SIZE):
            windows = [Window(tokens[position : position + 1], position, table) for table in tables]
            for logits in models.target.forward(windows):
                assert np.array_equal(logits[0], whole[position])


def test_without_the_promise_no_row_is_repeated(embedded_pair: Path, models: Models, tokens, whole):
    """Then the logits of single rows are close, and it is this device's business whether they are equal."""
    loose = PagedModel(embedded_pair / "target", 4, exact=False)
    assert loose.rows.fewest == 1
    blocks = range(4)
    loose.forward([Window(tokens[:40], 0, blocks)])
    rows = [loose.forward([Window(tokens[i : i + 1], i, blocks)])[0][0].copy() for i in range(40, 80)]
    assert np.corrcoef(np.ravel(rows), whole[40:80].ravel())[0, 1] > 0.99


def test_logits_do_not_depend_on_how_many_rows_are_wanted(models: Models, tokens, whole):
    for num_rows in (1, 2, 3, 17, 64):
        (logits,) = models.target.forward([Window(tokens[:64], 0, range(2), num_rows)])
        assert logits.shape == (num_rows, models.target.vocabulary_size)
        assert np.array_equal(logits, whole[64 - num_rows : 64])


def test_prefill_gives_the_logits_behind_the_last_token(models: Models, tokens, whole):
    blocks = list(range(7))
    assert np.array_equal(prefill(models.target, tokens, 0, blocks), whole[-1])
    assert np.array_equal(prefill(models.target, tokens, LENGTH - 2, blocks), whole[-1])


def test_logits_are_those_of_the_model_before_the_transformation(embedded_pair: Path, tokens, whole):
    """Close, not equal: the cache holds eight bits a value."""
    properties = {"INFERENCE_PRECISION_HINT": "f32"} | limited_properties()
    model = ov.Core().compile_model(embedded_pair / "target" / "openvino_model.xml", "CPU", properties)
    positions = np.arange(LENGTH)[None]
    inputs = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, LENGTH), np.int64)}
    names = {name for port in model.inputs for name in port.get_names()}
    inputs |= {"position_ids": positions} if "position_ids" in names else {}
    inputs |= {"beam_idx": np.zeros(1, np.int32)} if "beam_idx" in names else {}
    plain = model(inputs)[0][0]
    assert np.corrcoef(plain.ravel(), whole.ravel())[0, 1] > 0.99
    assert (plain.argmax(axis=1) == whole.argmax(axis=1)).mean() > 0.85


def test_a_long_pass_that_is_filled_up_gives_everyone_the_logits_that_are_his(embedded_pair: Path, tokens):
    model = PagedModel(embedded_pair / "draft", 8, exact=False)
    windows = [Window(tokens[:45], 0, [5, 2], 45), Window(tokens[45:85], 0, [0, 7], 1), Window(tokens[85:87], 0, [1])]
    together = [rows.copy() for rows in model.forward(windows)]
    assert [rows.shape for rows in together] == [(45, model.vocabulary_size), *[(1, model.vocabulary_size)] * 2]
    for window, rows in zip(windows, together, strict=True):
        (alone,) = model.forward([window])
        assert np.corrcoef(rows.ravel(), alone.ravel())[0, 1] > 0.999
    more = model.forward([Window(tokens[45:46], 45, [5, 2])])[0].copy()
    (whole,) = model.forward([Window(tokens[:46], 0, [3, 4])])
    assert np.corrcoef(more.ravel(), whole.ravel())[0, 1] > 0.999, "the filling wrote into a block of others"


@pytest.mark.parametrize("value", ["BY_CHANNEL", "AUTO"])
def test_keys_quantized_by_channel_are_refused_for_the_promise_they_break(embedded_pair: Path, value: str):
    with pytest.raises(InvalidOption, match=r"KEY_CACHE_QUANT_MODE=.*the same seed would give another text"):
        PagedModel(embedded_pair / "draft", 4, {"KEY_CACHE_QUANT_MODE": value})


@pytest.fixture
def folder(embedded_pair: Path, tmp_path: Path) -> Path:
    """A copy of the draft model, the smaller one, to be damaged."""
    return Path(shutil.copytree(embedded_pair / "draft", tmp_path / "model"))


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_model.bin"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut short"])
def test_a_damaged_model_is_told_with_its_file(folder: Path, name, damage):
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[: len(content) // 2 if damage == "cut short" else 0])
    with pytest.raises(BrokenPair, match=r"openvino_model.*export the pair again"):
        PagedModel(folder, 4)


def save(model: ov.Model, folder: Path) -> None:
    for suffix in ("xml", "bin"):
        (folder / f"openvino_model.{suffix}").unlink()
    ov.save_model(model, folder / "openvino_model.xml")


def test_a_model_without_attention_has_no_paged_form(folder: Path):
    ids = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    rows = ops.gather(ops.constant(np.eye(8, dtype=np.float32)), ids, ops.constant(0, dtype=np.int64))
    logits = ops.matmul(rows, ops.constant(np.eye(8, dtype=np.float32)), False, False)
    logits.output(0).set_names({"logits"})
    save(ov.Model([logits], [ids], "plain"), folder)
    with pytest.raises(UnsupportedModel, match="choose a decoder language model"):
        PagedModel(folder, 4)


def test_an_unknown_property_is_refused(folder: Path):
    with pytest.raises(InvalidOption, match="NO_SUCH_PROPERTY"):
        PagedModel(folder, 4, {"NO_SUCH_PROPERTY": 1})


def test_the_vocabulary_is_that_of_the_configuration(models: Models, embedded_pair: Path):
    config = json.loads((embedded_pair / "target" / "config.json").read_text())
    assert models.target.vocabulary_size == config["vocab_size"]
