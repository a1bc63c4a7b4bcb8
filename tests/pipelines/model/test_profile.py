"""What is remembered of a pair is only taken for the devices and drivers that it was measured with."""

from __future__ import annotations

from pathlib import Path

import openvino
import pytest

from outrider.pipelines import Pair
from outrider.pipelines.model.profile import profile_path

Told = dict[tuple[str, str], str]  # by device and property
KNOWN: Told = {
    ("CPU", "INFERENCE_NUM_THREADS"): "2",
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


@pytest.mark.parametrize("name", [name for name in KNOWN if name != ("CPU", "INFERENCE_NUM_THREADS")], ids="-".join)
def test_another_device_or_driver_is_measured_anew(told: Told, embedded_pair: Path, name: tuple[str, str]) -> None:
    pair = Pair.open(embedded_pair)
    before = profile_path(pair, "NPU", {}, True, "GPU.1")
    assert profile_path(pair, "NPU", {}, True, "GPU.1") == before
    told[name] += " of another kind"
    assert profile_path(pair, "NPU", {}, True, "GPU.1") != before


def test_the_place_of_the_draft_model_makes_a_difference(told: Told, embedded_pair: Path) -> None:
    pair = Pair.open(embedded_pair)
    told["GPU.1", "FULL_DEVICE_NAME"] = told["CPU", "FULL_DEVICE_NAME"]
    del told["GPU.1", "GPU_DRIVER_VERSION"]
    assert profile_path(pair, "NPU", {}, True, "GPU.1") != profile_path(pair, "NPU", {}, True)
