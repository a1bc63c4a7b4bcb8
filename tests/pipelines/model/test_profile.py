"""What is remembered of a pair is only taken for the devices and drivers that it was measured with."""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openvino
import pytest
from filelock import FileLock

from outrider.pipelines import Pair
from outrider.pipelines.model import processor, profile
from outrider.pipelines.model.pair import Skipping
from outrider.pipelines.model.profile import discard, keep, kept, one_at_a_time, profile_path, write_whole
from outrider.pipelines.model.target import Rows
from outrider.pipelines.model.tuning import Compilation

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


def test_early_exit_is_measured_apart_from_skipping_the_same_layers(
    embedded_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for is_exit in (False, True):
        monkeypatch.setattr(Pair, "skipping", Skipping((2, 3, 4, 5), is_exit))
        paths.append(profile_path(Pair.open(embedded_pair), "CPU", {}, True))
    assert paths[0] != paths[1]


def test_a_file_that_several_write_at_once_is_always_whole(tmp_path: Path) -> None:
    path, contents = tmp_path / "file.json", (b"A" * 3000, b"B" * 200)
    write_whole(path, contents[0])
    with ThreadPoolExecutor(2) as pool:
        written = [pool.submit(lambda each=each: [write_whole(path, each) for _ in range(300)]) for each in contents]
        while not all(each.done() for each in written):
            assert path.read_bytes() in contents
    for each in written:
        each.result()
    assert [*tmp_path.iterdir()] == [path]


def test_of_several_that_find_out_the_same_at_once_all_go_by_the_first(tmp_path: Path) -> None:
    path, begins = tmp_path / "cost" / "file.json", threading.Barrier(4)

    def found(own: float) -> float:
        begins.wait()
        with one_at_a_time(path, float):
            known = kept(path, float)
            if known is None:
                keep(path, own)
                known = own
        return known

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(found, (1.0, 2.0, 3.0, 4.0)))) == 1


def test_who_has_waited_for_what_is_known_by_then_keeps_nobody_waiting(tmp_path: Path) -> None:
    path, waited, looked = tmp_path / "file.json", threading.Event(), threading.Event()

    def wait() -> None:
        with one_at_a_time(path, float):
            waited.set()
            assert looked.wait(60)

    with ThreadPoolExecutor(1) as pool:
        with one_at_a_time(path, float):
            waiting = pool.submit(wait)
            assert not waited.wait(0.2)
            keep(path, 1.0)
        assert waited.wait(60)
        with FileLock(path.with_suffix(".lock"), timeout=0):
            looked.set()
        waiting.result()


def test_nobody_waits_for_ever_or_where_nothing_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(profile, "WAIT_S", 0.0)
    entered = []
    with one_at_a_time(tmp_path / "file.json", float), one_at_a_time(tmp_path / "file.json", float):
        entered.append("held by another")
    assert "is not waited for" in caplog.text
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING), one_at_a_time(tmp_path / "file" / "cost.json", float):
        entered.append("no folder")
    assert entered == ["held by another", "no folder"]


def test_what_is_damaged_counts_as_missing(tmp_path: Path) -> None:
    path, sound = tmp_path / "file.json", Compilation(True, "f32", 2048, Rows(2, 80, 2), 1.2, False, 3)
    keep(path, sound)
    assert kept(path, Compilation) == sound
    whole = json.loads(path.read_text())
    for damaged in (
        {"rows": {"fewest": 0, "most": 0}}, {"rows": {"fewest": 9, "most": 8}}, {"longest": 0}, {"num_threads": -3},
        {"rows": {"fewest_projected": 0}}, {"exact": "perhaps"},
    ):  # fmt: skip
        path.write_text(json.dumps({**whole, **damaged}))
        assert kept(path, Compilation) is None, damaged


def test_what_cannot_be_removed_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    discard(tmp_path / "file" / "cost.json")
    assert "cannot be removed" in caplog.text
