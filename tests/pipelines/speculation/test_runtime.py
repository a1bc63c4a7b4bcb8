"""What is tried of a pair before it answers: the promise, in the precision that keeps it, and every size of a pass."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest

from outrider.pipelines import LLMPipeline
from outrider.pipelines.errors import DeviceFailed
from outrider.pipelines.model import exactness
from outrider.pipelines.model.processor import PRECISION, fastest_precision
from outrider.pipelines.model.target import Window
from outrider.pipelines.speculation import loaded_target
from outrider.pipelines.speculation import runtime as runtime_module
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import LONGEST
from outrider.pipelines.speculation.drafting_model import DraftingFailed

pytestmark = pytest.mark.slow

RENAME = "Rename `width` to `breadth`.\n\ndef area(width, height):\n    return width * height\n"


@pytest.fixture
def promise(monkeypatch, tmp_path):
    """Says instead of the check whether a model keeps the promise, before which few numbers of rows are tried; what
    comes out is remembered for this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(exactness, "TRIED", (1, 2, 5, 16, 64))
    return lambda is_exact: monkeypatch.setattr(exactness, "is_exact", is_exact)


@pytest.mark.parametrize("is_exact_in_few_bits", [True, False])
def test_few_bits_are_taken_only_where_they_keep_the_promise(embedded_pair, promise, is_exact_in_few_bits):
    few = fastest_precision()
    if few == "f32":
        pytest.skip("this processor has no other precision")
    promise(lambda model, *tried: model.precision == "f32" or is_exact_in_few_bits)
    chosen, *asked = [
        LLMPipeline(embedded_pair, cache_tokens=512, exact=True, **properties)
        for properties in ({}, {"INFERENCE_PRECISION_HINT": "f32"}, {"INFERENCE_PRECISION_HINT": few})
    ]
    assert [pipeline.speculation.precision for pipeline in asked] == ["f32", few], "the user is not overruled"
    assert asked[1].exact == is_exact_in_few_bits
    if not is_exact_in_few_bits:
        assert chosen.speculation.precision == "f32"
    expected = asked[chosen.speculation.precision == few].generate(RENAME, max_new_tokens=40, mode="off").texts
    for mode in ("off", "auto"):
        assert chosen.generate(RENAME, max_new_tokens=40, mode=mode).texts == expected


@pytest.mark.parametrize("exact", [True, None])
def test_a_promise_that_cannot_be_kept_is_not_made_and_whoever_asked_for_it_is_warned(
    embedded_pair, promise, caplog, exact
):
    promise(lambda model, *tried: False)
    pipeline = LLMPipeline(embedded_pair, cache_tokens=512, exact=exact)
    assert not pipeline.exact
    assert ("the same seed may give another text" in caplog.text) == (exact is True)


def test_what_a_pair_was_found_to_be_is_remembered_until_it_is_measured_again(embedded_pair, promise):
    tried = []

    def is_exact(model, *of):
        tried.append(model.precision)
        return model.precision == "f32"

    def load(**properties):
        tried.clear()
        return LLMPipeline(embedded_pair, cache_tokens=512, exact=True, **properties).speculation

    promise(is_exact)
    load()
    assert tried
    speculation = load()
    assert tried == []
    load(DYNAMIC_QUANTIZATION_GROUP_SIZE=64)
    assert tried, "other properties, other kernels"
    speculation.measure(again=True)
    assert load().precision == "f32"
    assert tried


def test_pipelines_that_are_loaded_at_once_make_the_same_promise(embedded_pair, promise):
    """Even if the check comes to another result each time, as times that scatter do."""
    found = itertools.cycle([True, False])
    promise(lambda model, *tried: next(found))
    with ThreadPoolExecutor(3) as pool:
        loading = [pool.submit(LLMPipeline, embedded_pair, cache_tokens=512, exact=True) for _ in range(3)]
        compilations = {each.result().speculation.compilation for each in loading}
    assert len(compilations) == 1


def test_what_passes_cost_is_kept_apart_for_a_cache_too_small_for_a_long_context(embedded_pair, promise):
    promise(lambda model, *tried: True)
    small, large = (
        LLMPipeline(embedded_pair, cache_tokens=tokens, exact=True).speculation for tokens in (96, 4096)
    )
    small.measure()
    assert min(small.cost.context_ms) > 0, "guessed from bytes"
    assert small._profile != large._profile


def test_however_many_requests_come_first_costs_are_measured_once(embedded_pair, promise, monkeypatch):
    promise(lambda model, *tried: True)
    speculation = LLMPipeline(embedded_pair, cache_tokens=512, exact=True).speculation
    measured, measured_cost = [], runtime_module.measured_cost
    monkeypatch.setattr(
        runtime_module, "measured_cost", lambda *given: measured.append(given) or measured_cost(*given)
    )
    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(speculation.measure) for _ in range(4)]:
            each.result()
    assert len(measured) == 1


def test_a_model_that_fails_in_several_threads_at_once_is_given_up_once(embedded_pair, caplog):
    speculation = LLMPipeline(embedded_pair, cache_tokens=512, exact=True).speculation
    failed = speculation._drafting[0]
    failure, profile = DraftingFailed(failed, DeviceFailed("out of memory")), speculation._profile
    for _ in range(2):
        speculation._give_up(failure)
    assert failed not in speculation._drafting
    assert speculation._profile == profile.with_suffix(f".without-{failed.name}.json")
    assert caplog.text.count("Nothing is drafted with the") == 1


def test_what_passes_cost_is_measured_anew_where_the_model_is_compiled_otherwise(embedded_pair, monkeypatch):
    load_target = loaded_target.load_target
    for longest in (None, 128):

        def load(*given, longest=longest):
            model, found = load_target(*given)
            return model, replace(found, longest=longest)

        with monkeypatch.context() as patch:
            patch.setattr(loaded_target, "load_target", load)
            speculation = LLMPipeline(embedded_pair, cache_tokens=512, exact=True).speculation
        speculation.measure()
        if longest is None:
            first = speculation._profile
        assert speculation._profile.exists()
    assert speculation._profile != first


def test_properties_that_do_not_go_with_few_bits_are_kept(embedded_pair):
    speculation = LLMPipeline(embedded_pair, cache_tokens=512, KV_CACHE_PRECISION="f32").speculation
    assert speculation.precision == "f32"


@pytest.mark.parametrize("way", ["exit", "mtp", "medusa", "dflash"])
def test_every_model_runs_on_as_many_threads_as_the_user_says(way, drafting_pairs, monkeypatch):
    """The parts of a target that drafts by itself, its exit, a draft model, and heads of every class."""
    compile_model, used = ov.Core.compile_model, []

    def noting(*given):
        compiled = compile_model(*given)
        used.append(compiled.get_property("INFERENCE_NUM_THREADS"))
        return compiled

    monkeypatch.setattr(ov.Core, "compile_model", noting)
    speculation = LLMPipeline(drafting_pairs / way, cache_tokens=256, INFERENCE_NUM_THREADS=1).speculation
    drafting = [each.name for each in speculation._drafting]
    assert drafting == (["draft_model", "head", "early_exit"] if way == "exit" else ["head"])
    assert len(used) > len(drafting)
    assert set(used) == {1}


def test_a_cache_that_is_not_quantized_takes_more_memory_and_is_exact_too(embedded_pair):
    narrow = LLMPipeline(embedded_pair, cache_tokens=512, exact=True)
    wide = LLMPipeline(embedded_pair, cache_tokens=512, exact=True, KV_CACHE_PRECISION="f16")
    assert wide.speculation.memory.cache > narrow.speculation.memory.cache
    wide.warm_up()
    assert wide.exact
    for seed in (None, 1, 2):
        settings = {"max_new_tokens": 60} | ({} if seed is None else {"do_sample": True, "rng_seed": seed})
        plain, *others = (wide.generate(RENAME, mode=mode, **settings).texts for mode in ("off", "auto", "draft"))
        assert others == [plain, plain]


def test_a_pass_of_each_size_that_a_draft_can_lead_to_is_run_while_there_is_time(embedded_pair, monkeypatch):
    speculation = LLMPipeline(embedded_pair, cache_tokens=256).speculation
    sizes: dict[str, list[int]] = {"target": [], "draft": []}
    for name, model in (("target", speculation._target), ("draft", speculation._drafting[0].model)):

        def forward(windows, run=model.forward, seen=sizes[name]):
            seen += [len(window.tokens) for window in windows]
            return run(windows)

        monkeypatch.setattr(model, "forward", forward)
    monkeypatch.setattr(runtime_module, "PREPARED_S", math.inf)
    speculation.prepare()
    every = {name: list(range(1, LONGEST + 2)) for name in sizes}
    assert sizes == every
    monkeypatch.setattr(runtime_module, "PREPARED_S", 0.0)
    speculation.prepare()
    assert sizes == every, "nobody waits for longer"
    assert speculation._pool.num_free == speculation._pool.num_blocks


@pytest.mark.parametrize(
    "properties",
    [
        {"KV_CACHE_PRECISION": "u8"},
        {"KV_CACHE_PRECISION": "f16"},
        {"KV_CACHE_PRECISION": "f32"},
        *([{"KV_CACHE_PRECISION": "bf16", PRECISION: "bf16"}] if fastest_precision() == "bf16" else ()),
    ],
)
def test_passes_are_timed_over_memory_that_was_written_to(embedded_pair, monkeypatch, properties):
    """What was never written to is one page of zeros, and reading it costs nothing."""
    untouched = []

    def measure(target, drafts, *limits, **budget):
        for run in (target, *drafts.values()):
            run(2, 100)
        for model in (speculation._target, *(each.model for each in speculation._drafting)):
            for cache in model._request._caches:
                filled = cache.data.reshape(cache.shape[0], -1)[:-1].any(axis=1)  # the last block is spare
                untouched.append(int((~filled).sum()))
        return CostModel((2, 4), (1.0, 2.0), (0.0, 0.0))

    speculation = LLMPipeline(embedded_pair, cache_tokens=512, **properties).speculation
    monkeypatch.setattr(runtime_module, "measure", measure)
    speculation.measure(again=True)
    assert len(untouched) > 1
    assert not any(untouched)
    assert all(np.isfinite(logits).all() for logits in speculation._target.forward([Window([5, 6], 100, range(5), 2)]))


def test_measuring_leaves_no_trace_in_what_the_cache_keeps_of_earlier_prompts(embedded_pair):
    pipeline = LLMPipeline(embedded_pair, cache_tokens=4096, exact=True)
    settings = {"max_new_tokens": 40, "do_sample": True, "rng_seed": 3}
    prompt = RENAME + "\ndef twice(width):\n    return 2 * width\n" * 8  # some blocks long
    before = {mode: pipeline.generate(prompt, mode=mode, **settings).texts for mode in ("off", "auto", "draft")}
    pipeline.speculation.measure(again=True)
    again = {mode: pipeline.generate(prompt, mode=mode, **settings) for mode in before}
    assert again["off"].generations[0].stats.cached_tokens > 0, "nothing was kept that could be spoilt"
    after = {mode: answers.texts for mode, answers in again.items()}
    assert len({str(texts) for texts in (*before.values(), *after.values())}) == 1


@pytest.mark.parametrize("doubt", [(), (0.0, 0.3)])
def test_what_was_only_estimated_is_measured_where_somebody_waits_for_that(embedded_pair, promise, monkeypatch, doubt):
    budgets = []

    def measure(target, draft, max_context, least_rows, most_rows, token_share, budget_s):
        budgets.append(budget_s)
        return CostModel((2, 4), (1.0, 2.0), (0.0, 0.0), base_doubt=doubt if len(budgets) == 1 else ())

    monkeypatch.setattr(runtime_module, "measure", measure)
    speculation = LLMPipeline(embedded_pair, cache_tokens=512).speculation
    speculation.measure_fully()
    assert budgets == [runtime_module.MEASURE_S, *([math.inf] if doubt else [])]
    speculation.measure_fully()
    assert len(budgets) == (2 if doubt else 1)
    speculation = LLMPipeline(embedded_pair, cache_tokens=512).speculation
    speculation.measure_fully()
    assert len(budgets) == (2 if doubt else 1), "what was measured in full is kept"


def test_nobody_waits_for_more_than_a_few_measurements_unless_they_are_asked_for(embedded_pair, promise, monkeypatch):
    budgets, shares = [], []

    def measure(target, draft, max_context, least_rows, most_rows, token_share, budget_s):
        budgets.append(budget_s)
        shares.append(token_share)
        return CostModel((2, 4), (1.0, 2.0), (0.0, 0.0))

    monkeypatch.setattr(runtime_module, "measure", measure)
    speculation = LLMPipeline(embedded_pair, cache_tokens=512).speculation
    speculation.measure()
    speculation.measure()
    speculation.measure(again=True)
    assert budgets == [runtime_module.MEASURE_S, math.inf]
    memory = speculation.memory
    assert 0 < shares[0] < memory.cache / memory.cache_tokens / speculation._target.weight_bytes


@pytest.mark.parametrize("is_large", [True, False])
def test_tokens_are_recycled_in_auto_where_passes_take_long_enough(embedded_pair, monkeypatch, is_large):
    weight_bytes = LLMPipeline(embedded_pair, cache_tokens=512).speculation.memory.weights
    monkeypatch.setattr(runtime_module, "RECYCLING_BYTES", 0 if is_large else weight_bytes)
    pipeline = LLMPipeline(embedded_pair, cache_tokens=512)
    for mode, drafts in (("recycling", True), ("chained", is_large), ("auto", is_large), ("suffix", False)):
        names = [drafter.name for drafter in pipeline.speculation._drafters._modes[mode].texts]
        assert ("recycling" in names) == drafts, mode
