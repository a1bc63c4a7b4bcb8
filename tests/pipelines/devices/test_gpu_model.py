"""A target on a GPU: the code is that for a GPU, the device that computes is the CPU, with caches in host memory."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.devices import gpu_model
from outrider.pipelines.devices.gpu_model import GpuPagedModel
from outrider.pipelines.errors import InvalidOption, UnsupportedDevice, UnsupportedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.processor import limited_properties
from outrider.pipelines.model.target import ANY_ROWS, Rows, Window
from tests.on_gpu import HostContext
from tests.on_npu import OnCpu

from ..real import NUM_BLOCKS, Models, Served
from ..requests import Asked

pytestmark = pytest.mark.slow

MODES = ("off", "lookup", "suffix", "draft", "chained")
CODE = "def area(width, height):\n    return width * height\n"
RENAME = f"Rename `width` to `breadth`.\n\n{CODE}"
PROPERTIES: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", **limited_properties()}
ROUNDING = 0.4  # of logits, between a cache of f16 and the CPU's own
LENGTH = 200


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[HostContext]:
    made = HostContext()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ov.Core, "get_default_context", lambda core, device: made)
        patch.setattr(gpu_model, "SETTLED_S", 0.0)
        yield made


@pytest.fixture(scope="module")
def folder(embedded_pair: Path) -> Path:
    return embedded_pair / "target"


@pytest.fixture(scope="module")
def model(folder: Path) -> GpuPagedModel:
    return GpuPagedModel(folder, NUM_BLOCKS, "CPU", PROPERTIES)


@pytest.fixture(scope="module")
def exact_model(folder: Path) -> GpuPagedModel:
    made = GpuPagedModel(folder, NUM_BLOCKS, "CPU", PROPERTIES)
    assert made.keep_exact() is not None
    return made


@pytest.fixture(scope="module")
def reference(embedded_pair: Path) -> OnCpu:
    return OnCpu(embedded_pair)


@pytest.fixture(scope="module")
def tokens(model: GpuPagedModel) -> list[int]:
    return np.random.default_rng(0).integers(0, model.vocabulary_size, LENGTH).tolist()


@pytest.fixture(scope="module")
def whole(reference: OnCpu, tokens: list[int]) -> np.ndarray:
    """The logits of all tokens, by the CPU alone."""
    return reference.logits(tokens)


@pytest.fixture
def served(model: GpuPagedModel, models: Models) -> Iterator[Served]:
    engine = replace(models, target=model).served()
    yield engine
    engine.assert_nothing_leaked()


def asked(served: Served, text: str, max_new_tokens: int = 32, **options: Any) -> Asked:
    prompt = tuple(served.tokenizer.encode(text, add_special_tokens=False))
    return Asked(prompt, GenerationConfig(ignore_eos=True, **options), max_new_tokens)


def differs(logits: np.ndarray, expected: np.ndarray) -> float:
    """By how much at most; not a number if any of them is none."""
    return float(np.abs(logits - expected).max())


@pytest.mark.parametrize("text", [RENAME, CODE * 3, "x", CODE * 48], ids=["edit", "code", "one token", "long"])
@pytest.mark.parametrize("mode", MODES)
def test_greedy_tokens_are_the_likeliest_by_the_cpu(served, reference, text, mode):
    question = asked(served, text)
    answer = served.one(question, mode)
    assert answer.num_new == 32
    assert reference.shortfall([*question.prompt], answer.new_tokens) < ROUNDING


def test_the_long_prompt_is_longer_than_a_pass(served):
    assert len(asked(served, CODE * 48).prompt) > ANY_ROWS.most


@pytest.mark.parametrize("mode", MODES[1:])
def test_drafts_save_passes_and_some_are_rejected(served, mode):
    answer = served.one(asked(served, RENAME, 48, num_assistant_tokens=5), mode)
    drafted = sum(len(record.drafted) for record in answer.trace)
    accepted = sum(source != "target" for source in answer.sources)
    assert len(answer.trace) < 40
    assert 0 < accepted < drafted


def test_requests_at_once_get_the_likeliest_tokens(served, reference):
    questions = [asked(served, text, 24) for text in (RENAME, CODE * 48, CODE, "x")]
    answers = served.all(questions, ["chained", "off", "lookup", "suffix"])
    for question, answer in zip(questions, answers, strict=True):
        assert reference.shortfall([*question.prompt], answer.new_tokens) < ROUNDING


@pytest.mark.parametrize("seed", range(4))
def test_logits_are_those_of_the_cpu_however_tokens_are_cut(model, tokens, whole, seed):
    """Into windows of all sizes, in scattered blocks, with rejected tokens that are written over, together with
    others."""
    rng = random.Random(seed)
    blocks = rng.sample(range(NUM_BLOCKS), 3 * (LENGTH // BLOCK_SIZE + 2))
    tables = [blocks[i::3] for i in range(3)]
    ends = [0, 0, 0]
    while min(ends) < LENGTH:
        due = [i for i in range(3) if ends[i] < LENGTH]
        windows = []
        for i in (chosen := rng.sample(due, rng.randint(1, len(due)))):
            size = min(rng.choice([1, 1, 2, 3, 8, 9, 40]), LENGTH - ends[i])
            rejected = [rng.randrange(1000) for _ in range(rng.choice([0, 0, 1, 5]))]
            new = [*tokens[ends[i] : ends[i] + size], *rejected]
            windows.append((size, Window(new, ends[i], tables[i], rng.choice([len(new), 1 + len(rejected)]))))
        all_logits = model.forward([window for _, window in windows])
        for i, (size, window), logits in zip(chosen, windows, all_logits, strict=True):
            assert len(logits) == window.num_rows
            begin, ends[i] = ends[i] + len(window.tokens) - window.num_rows, ends[i] + size
            assert differs(logits[: ends[i] - begin], whole[begin : ends[i]]) < ROUNDING, f"tokens from {begin} on"


class Watch:
    """What a request is fed in each pass."""

    def __init__(self, request: ov.InferRequest) -> None:
        self.fed: list[dict[str, np.ndarray]] = []
        self._request = request

    def infer(self, inputs: dict[str, np.ndarray], share_outputs: bool) -> Any:
        self.fed.append(inputs)
        return self._request.infer(inputs, share_outputs=share_outputs)

    def set_tensor(self, name: str, tensor: Any) -> None:
        self._request.set_tensor(name, tensor)


@pytest.fixture
def watched(model: GpuPagedModel, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """The inputs of the passes."""
    watch = Watch(model._request)
    monkeypatch.setattr(model, "_request", watch)
    return watch.fed


def test_decoding_feeds_single_rows_and_keeps_to_few_shapes(served, watched):
    served.all([asked(served, text, num_assistant_tokens=5) for text in (RENAME, CODE)], ["off", "chained"])
    sizes = [(len(fed["input_ids"]), len(fed["past_lens"]), len(fed["rows"])) for fed in watched]
    assert sizes[0][1:] == (2, 8)  # the prompts, as two windows
    assert {(rows, sequences) for rows, sequences, _ in sizes[1:]} <= {(1, 1), (8, 8), (16, 16)}
    assert {wanted for *_, wanted in sizes} <= {1, 8, 16}
    assert len({rows for rows, *_ in sizes[1:]}) > 1


@pytest.mark.parametrize("num_rows", [1, 6, 7, 20, 2 * BLOCK_SIZE])
def test_what_fills_a_pass_is_fed_row_by_row_and_changes_nothing(model, tokens, whole, watched, num_rows):
    model.forward([Window(tokens[:40], 0, [2, 5])])
    logits, nothing = model.forward([Window(tokens[40:42], 40, [2, 5], 2), Window.filling(num_rows)])
    assert differs(logits, whole[40:42]) < ROUNDING
    assert not len(nothing)
    assert watched[-1]["past_lens"].tolist() == [40, 41] + [0] * (len(watched[-1]["past_lens"]) - 2)
    assert len(watched[-1]["input_ids"]) == len(watched[-1]["past_lens"]) == -(-(2 + num_rows) // 8) * 8


def test_every_sequence_has_as_many_blocks_as_it_fills(served, watched):
    """OpenVINO's code for GPUs takes the length of prompts from that."""
    served.all([asked(served, CODE * 4), asked(served, CODE)], ["suffix", "suffix"])
    for fed in watched:
        ends = fed["past_lens"] + np.diff(fed["subsequence_begins"])
        assert np.array_equal(np.diff(fed["block_indices_begins"]), -(-ends // BLOCK_SIZE))
        assert fed["max_context_len"] == ends.max()


@pytest.mark.parametrize("num_rows", [1, 2, 7, 8, 9, 30])
def test_a_pass_writes_to_its_own_slots_and_the_spare_block_only(folder, context, tokens, num_rows):
    model = GpuPagedModel(folder, 8, "CPU", PROPERTIES)
    caches = context.tensors[-len(model._cache_ports) :]
    model.forward([Window(tokens[:40], 0, [6, 1])])
    before = [cache.data.copy().view(np.uint8) for cache in caches]
    model.forward([Window(tokens[40 : 40 + num_rows], 40, [6, 1, 3], num_rows)])
    slots = {(1 if at < 64 else 3, at % BLOCK_SIZE) for at in range(40, 40 + num_rows)}
    filling = {(8, 0)} if num_rows in (2, 7) else set()
    for cache, old in zip(caches, before, strict=True):
        changed = (cache.data.view(np.uint8) != old).any(axis=(1, 3))
        assert set(zip(*np.nonzero(changed), strict=True)) == slots | filling


def test_blocks_of_the_device_may_be_smaller(folder, tokens, whole, monkeypatch):
    monkeypatch.setattr(gpu_model, "BLOCK_SIZE", 2 * BLOCK_SIZE)
    model = GpuPagedModel(folder, 9, "CPU", PROPERTIES)
    model.occupy(range(9))
    for table in ([7, 2, 3, 0], [1, 8, 7, 6]):
        logits = [
            model.forward([Window(tokens[at : at + 90], at, table, len(tokens[at : at + 90]))])[0].copy()
            for at in (0, 90)
        ]
        logits += [model.forward([Window(tokens[at : at + 5], at, table, 5)])[0].copy() for at in range(180, LENGTH, 5)]
        assert differs(np.concatenate(logits), whole) < ROUNDING


def test_a_cache_that_was_never_written_is_filled_by_passes(folder, context):
    model = GpuPagedModel(folder, 8, "CPU", PROPERTIES)
    (before,) = model.blind_pass(4, 180, range(8))
    assert np.isnan(before).all()
    model.occupy(range(8))
    (after,) = model.blind_pass(4, 8 * BLOCK_SIZE - 4, range(8))
    assert np.isfinite(after).all()
    assert model.cache_bytes == sum(tensor.data.nbytes for tensor in context.tensors[-len(model._cache_ports) :])


def test_a_cache_of_eight_bits_takes_rejected_tokens_back_too(folder, tokens, whole):
    model = GpuPagedModel(folder, 8, "CPU", {**PROPERTIES, "KV_CACHE_PRECISION": "u8"})
    for at in range(0, LENGTH, 4):
        (logits,) = model.forward([Window([*tokens[at : at + 4], 7, 8, 9], at, range(8), 7)])
        assert np.corrcoef(logits[:4].ravel(), whole[at : at + 4].ravel())[0, 1] > 0.995


def test_exact_texts_are_the_same_in_every_mode(model, exact_model, models, reference):
    assert exact_model.exact
    assert exact_model.rows == Rows(16, 16, 16)
    assert (exact_model.num_blocks, exact_model.cache_bytes) == (NUM_BLOCKS, model.cache_bytes)
    questions = [(RENAME, {}), (CODE, {"do_sample": True, "temperature": 1.2, "rng_seed": 3})]
    for text, options in questions:
        texts = []
        for mode in ("off", "suffix", "chained"):
            served = replace(models, target=exact_model).served()
            question = asked(served, text, **options)
            answers = served.all([question, asked(served, "x", len(texts) + 1)], [mode, "lookup"])
            texts.append(answers[0].new_tokens)
            served.assert_nothing_leaked()
        assert texts[0] == texts[1] == texts[2]
    assert reference.shortfall([*asked(served, RENAME).prompt], served.one(asked(served, RENAME)).new_tokens) < ROUNDING


@pytest.mark.parametrize(
    ("tries", "expected"),
    [([False, True, True], True), ([True, True, False], False), ([True, False], False)],
    ids=["before kernels are compiled", "once", "only before"],
)
def test_exactness_is_promised_if_it_holds_twice_once_kernels_are_compiled(folder, monkeypatch, tries, expected):
    left = [*tries]
    monkeypatch.setattr(gpu_model, "is_exact", lambda model, max_context: left.pop(0))
    model = GpuPagedModel(folder, 4, "CPU", PROPERTIES)
    assert (model.keep_exact() is not None) == expected
    assert (model.exact, model.num_blocks, left) == (expected, 4, [])
    assert model.rows == (Rows(16, 16, 16) if expected else ANY_ROWS)


def test_passes_are_run_for_a_while_before_the_first_that_counts(folder, monkeypatch):
    now, tries = [0.0], []

    def is_exact(model: GpuPagedModel, max_context: int) -> bool:
        now[0] += 1.0
        tries.append(model.rows)
        return True

    monkeypatch.setattr(gpu_model, "SETTLED_S", 3.0)
    monkeypatch.setattr(gpu_model.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(gpu_model, "is_exact", is_exact)
    monkeypatch.setattr(GpuPagedModel, "_price", lambda model: 1.0)
    GpuPagedModel(folder, 4, "CPU", PROPERTIES).keep_exact()
    assert tries == [Rows(16, 16, 16)] * 5


@pytest.mark.parametrize(("price", "expected"), [(1.05, True), (1.2, False)])
def test_exactness_that_costs_more_than_the_limit_is_left_out(folder, monkeypatch, price, expected):
    monkeypatch.setattr(gpu_model, "is_exact", lambda model, max_context: True)
    monkeypatch.setattr(GpuPagedModel, "_price", lambda model: price)
    model = GpuPagedModel(folder, 4, "CPU", PROPERTIES)
    assert model.keep_exact(limit=1.1) == price
    assert (model.exact, model.rows) == ((True, Rows(16, 16, 16)) if expected else (False, ANY_ROWS))


@pytest.mark.parametrize("num_blocks", [4, 20])
def test_the_price_counts_a_prompt_that_is_read_a_few_tokens_at_a_time(folder, monkeypatch, num_blocks):
    model = GpuPagedModel(folder, num_blocks, "CPU", PROPERTIES)
    now, forward = [0.0], model.forward

    def slow(windows: Sequence[Window]) -> list[np.ndarray]:
        num_rows = len(windows[0].tokens)
        now[0] += 24.0 if model.exact else 9.0 if num_rows == 1 else num_rows / 4
        return forward(windows)

    monkeypatch.setattr(model, "forward", slow)
    monkeypatch.setattr(gpu_model.time, "perf_counter", lambda: now[0])
    assert model._price() == pytest.approx((512 / 16 + 128) * 24 / (512 / 4 + 128 * 9))


def test_what_is_not_asked_for_is_not_promised_and_a_pass_may_have_any_number_of_rows(model, exact_model, folder):
    assert (model.exact, model.rows, model.num_threads, model.precision) == (False, ANY_ROWS, 0, "f32")
    assert model.weight_bytes == (folder / "openvino_model.bin").stat().st_size
    (logits,) = model.forward([Window([0] * 513, 0, range(17))])
    assert np.isfinite(logits).all()
    with pytest.raises(ValueError, match="17 rows"):
        exact_model.forward([Window([0] * 17, 0, [0])])


def test_a_device_that_is_not_there_is_refused(folder, monkeypatch):
    monkeypatch.setattr(ov.Core, "get_default_context", _failing("no such device"))
    with pytest.raises(UnsupportedDevice, match=r"GPU\.1 \(no such device\): install the device's driver, or .*CPU"):
        GpuPagedModel(folder, 4, "GPU.1")


def test_a_model_that_cannot_be_compiled_is_told(folder, monkeypatch):
    monkeypatch.setattr(ov.Core, "compile_model", _failing("kernel failed"))
    with pytest.raises(UnsupportedDevice, match=r"could not compile .*target for GPU \(kernel failed\): update"):
        GpuPagedModel(folder, 4)


def test_a_cache_that_is_too_large_is_told(model, monkeypatch):
    kept = model.num_blocks
    monkeypatch.setattr(model._remote, "create_tensor", _failing("out of memory"))
    with pytest.raises(UnsupportedDevice, match=r"cache of 320 tokens \(out of memory\): .*fewer cache_tokens"):
        model.resize(10)
    monkeypatch.undo()
    model.resize(kept)


def test_blocks_that_are_no_part_of_ours_are_refused(folder, monkeypatch):
    monkeypatch.setattr(gpu_model, "BLOCK_SIZE", 48)
    with pytest.raises(UnsupportedModel, match="blocks of 32 tokens, and 48 is no multiple of that"):
        GpuPagedModel(folder, 4, "CPU", PROPERTIES)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"HORSES": 4}, r"CPU refuses HORSES=4 \(.*HORSES.*leave it out"),
        ({"KV_CACHE_PRECISION": "i3"}, r"CPU refuses KV_CACHE_PRECISION='i3' \(.*leave it out"),
        ({"KEY_CACHE_QUANT_MODE": "BY_CHANNEL"}, r"KEY_CACHE_QUANT_MODE=BY_CHANNEL is not possible: .*Leave it out"),
    ],
    ids=["unknown", "value", "by channel"],
)
def test_properties_that_are_refused_are_told(folder, properties, message):
    with pytest.raises(InvalidOption, match=message):
        GpuPagedModel(folder, 4, "CPU", properties)


def test_inputs_other_than_tokens_are_refused(folder, tmp_path):
    damaged = Path(shutil.copytree(folder, tmp_path / "model"))
    ir = damaged / "openvino_model.xml"
    core = ov.Core()
    changed = core.read_model(folder / "openvino_model.xml")
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (damaged / name).unlink()
    image = ov.opset15.parameter([-1], ov.Type.f32, name="image")
    image.output(0).set_names({"image"})
    result = ov.opset15.result(image)
    changed.add_parameters([image])
    changed.add_results([result])
    ov.save_model(changed, ir, compress_to_fp16=False)
    with pytest.raises(UnsupportedModel, match="needs inputs other than tokens: image"):
        GpuPagedModel(damaged, 4, "CPU", PROPERTIES)


def _failing(message: str) -> Any:
    def fail(*args: object, **named: object) -> Sequence[int]:
        raise RuntimeError(message)

    return fail
