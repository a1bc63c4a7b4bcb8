"""Threads: numbers worth trying are those of the processor's cores, and a model runs on as many as it is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openvino as ov
import psutil
import pytest

from outrider.pipelines import LLMPipeline
from outrider.pipelines.model import threads, tuning
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.processor import usable_cpus
from outrider.pipelines.model.target import Window


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A processor with so many performance cores, cores and logical processors, as OpenVINO would tell."""
    performance, physical, logical = request.param

    def compile_model(core: ov.Core, model: ov.Model, device: str, asked: dict[str, object]) -> SimpleNamespace:
        usable = logical if asked[threads.HYPER_THREADING] else physical
        usable = performance if asked[threads.CORE_TYPE] == "PCORE_ONLY" else usable
        told = {threads.NUM_THREADS: min(usable, asked[threads.NUM_THREADS])}
        return SimpleNamespace(get_property=told.__getitem__)

    monkeypatch.setattr(ov.Core, "compile_model", compile_model)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: logical)


@pytest.mark.parametrize(
    ("cores", "own", "expected"),
    [
        ((2, 2, 2), 2, []),
        ((2, 2, 4), 2, [4]),
        ((4, 4, 8), 4, [8, 2]),
        ((6, 14, 20), 6, [14, 20, 3]),
        ((6, 14, 20), 14, [6, 20, 7]),
        ((8, 8, 8), 8, [4]),
        ((8, 8, 16), 8, [16, 4]),
    ],
    indirect=["cores"],
)
def test_other_numbers_are_those_of_cores_of_each_kind_and_half_as_many(cores, own: int, expected: list[int]) -> None:
    assert threads.other_numbers(own) == expected


@pytest.mark.parametrize("cores", [(6, 14, 20)], indirect=True)
def test_more_threads_than_cores_share_them(cores: None) -> None:
    assert threads.with_threads(None) == {}
    for number, shared in ((6, False), (14, False), (20, True)):
        assert threads.with_threads(number) == {"INFERENCE_NUM_THREADS": number, "ENABLE_HYPER_THREADING": shared}


def test_openvino_tells_as_many_as_this_process_may_use() -> None:
    numbers = [*threads.other_numbers(0)]
    assert max(numbers) <= usable_cpus()
    assert min(numbers) >= 1


def test_a_program_that_is_busy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "QUIET", 0.9)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert any(not threads.is_quiet() for _ in range(100))
        finally:
            busy.kill()
    monkeypatch.setattr(threads, "QUIET", float(psutil.cpu_count()))
    assert threads.is_quiet(), "more than all processors cannot be busy"


def test_a_target_computes_the_same_on_another_number_of_threads(embedded_pair: Path) -> None:
    window = [Window([5, 6, 7, 8], 0, [0], num_rows=4)]
    models = [PagedModel(embedded_pair / "target", 1, threads.with_threads(number)) for number in (None, 1)]
    assert models[1].num_threads == 1
    alone, together = (model.forward(window)[0] for model in models)
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_what_drafts_runs_on_the_number_of_threads_that_was_chosen_for_the_target(
    embedded_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is another one than OpenVINO's here, whatever is faster on this machine."""
    compile_model, used = ov.Core.compile_model, []

    def noting(core: ov.Core, model: ov.Model, *given: object) -> ov.CompiledModel:
        compiled = compile_model(core, model, *given)
        if len(model.get_ops()) > 10:  # not the one that tells the number of cores
            used.append(compiled.get_property(threads.NUM_THREADS))
        return compiled

    monkeypatch.setattr(tuning, "other_numbers", lambda own: [1])
    monkeypatch.setattr(tuning, "is_quiet", lambda: True)
    monkeypatch.setattr(tuning, "_is_faster", lambda relative: True)
    monkeypatch.setattr(ov.Core, "compile_model", noting)
    properties = {"CPU_RUNTIME_CACHE_CAPACITY": 100}  # of which nothing is known yet
    for _ in range(2):
        speculation = LLMPipeline(embedded_pair, cache_tokens=256, exact=True, **properties).speculation
        assert speculation.compilation.num_threads == speculation.num_threads == 1
        assert used[-3:] == [1, 1, 1]  # target, draft model and head
        assert speculation.exact
