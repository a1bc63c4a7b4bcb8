"""What is remembered of a pair is only taken for the devices and drivers that it was measured with."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import openvino
import pytest

from outrider.pipelines import Pair
from outrider.pipelines.model import processor, profile
from outrider.pipelines.model.profile import profile_path

Told = dict[tuple[str, str], str]  # by device and property
KNOWN: Told = {
    ("CPU", "FULL_DEVICE_NAME"): "a processor",
    ("NPU", "FULL_DEVICE_NAME"): "an NPU",
    ("NPU", "NPU_DRIVER_VERSION"): "1",
    ("NPU", "NPU_COMPILER_VERSION"): "1",
    ("GPU.1", "FULL_DEVICE_NAME"): "a GPU",
    ("GPU.1", "GPU_DRIVER_VERSION"): "1",
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What devices tell of themselves."""
    told = dict(KNOWN)

    def get_property(core: openvino.Core, device: str, name: str) -> str:
        try:
            return told[device, name]
        except KeyError:
            raise RuntimeError("no such property") from None

    monkeypatch.setattr(openvino.Core, "get_property", get_property)
    return told


@pytest.mark.parametrize("name", KNOWN, ids="-".join)
def test_another_device_or_driver_is_measured_anew(told: Told, embedded_pair: Path, name: tuple[str, str]) -> None:
    pair = Pair.open(embedded_pair)
    before = profile_path(pair, "NPU", {}, True, "GPU.1")
    assert profile_path(pair, "NPU", {}, True, "GPU.1") == before
    told[name] += " of another kind"
    assert profile_path(pair, "NPU", {}, True, "GPU.1") != before


@pytest.mark.parametrize(
    ("name", "other"), [("usable_cpus", 1024), ("instructions", "avx2"), ("instruction_limit", "AVX2_OTHER")]
)
def test_other_cpus_and_instructions_are_measured_anew(
    told: Told, embedded_pair: Path, monkeypatch: pytest.MonkeyPatch, name: str, other: object
) -> None:
    """Also where the processor has the same name, as in virtual machines."""
    pair = Pair.open(embedded_pair)
    before = profile_path(pair, "CPU", {}, None)
    monkeypatch.setattr(profile, name, lambda: other)
    assert profile_path(pair, "CPU", {}, None) != before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the CPUs of a process cannot be set here")
def test_the_cpus_that_a_process_may_use_are_told() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert processor.usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert processor.usable_cpus() == len(allowed)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux lists instruction sets there")
def test_the_instruction_sets_of_the_processor_are_told() -> None:
    assert {"sse2", "avx2"} & set(processor.instructions().split()) or platform.machine() not in ("x86_64", "AMD64")


def test_the_place_of_the_draft_model_makes_a_difference(told: Told, embedded_pair: Path) -> None:
    pair = Pair.open(embedded_pair)
    told["GPU.1", "FULL_DEVICE_NAME"] = told["CPU", "FULL_DEVICE_NAME"]
    del told["GPU.1", "GPU_DRIVER_VERSION"]
    assert profile_path(pair, "NPU", {}, True, "GPU.1") != profile_path(pair, "NPU", {}, True)
