"""Targets for an NPU, where OpenVINO's code for it computes on the CPU, and for a GPU, for which GenAI stands in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino_genai
import pytest

from outrider.export import Compression, device_check, export_pair, pair_export
from outrider.export.command import main
from outrider.export.device import MOST_IN_GROUPS, grouped
from outrider.export.device_check import NPU_ON_CPU, check_on
from outrider.export.errors import DeviceCheckFailed
from outrider.pipelines.devices import devices
from outrider.pipelines.errors import InvalidOption
from outrider.pipelines.model.processor import limited_properties

from .conftest import make_llama, make_tokenizer, save

GENAI = openvino_genai.LLMPipeline


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """OpenVINO finds a CPU alone, even where there is more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_check, "device_names", lambda: ("CPU",))
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with several groups of 128 weights in a row, which samples unless told otherwise."""
    model = make_llama(256, 2, seed=1, heads=8)
    model.generation_config.do_sample, model.generation_config.temperature = True, 5.0
    return save(tmp_path_factory.mktemp("checkpoints") / "target", model, make_tokenizer())


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A pair for an NPU, and the steps that were announced."""
    said: list[str] = []
    out = tmp_path_factory.mktemp("pairs") / "npu"
    return export_pair(source, None, out, device="NPU", announce=said.append), said


@pytest.fixture
def asked(made: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> list[Compression]:
    """How exports want targets compressed. They copy one that was exported before, and leave out what others test."""
    compressions = []

    def copied(role: str, *arguments: Any) -> dict[str, Any]:
        compressions.append(arguments[2])
        shutil.copytree(made[0] / role, arguments[3])
        return {}

    monkeypatch.setattr(pair_export, "_make", copied)
    monkeypatch.setattr(pair_export, "fastest_properties", lambda folder: {})
    monkeypatch.setattr(pair_export, "round_trip", lambda folder: {"exact": True})
    return compressions


def described(pair: Path) -> dict[str, Any]:
    return json.loads((pair / "pair.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--target-weights", "int8"], "weights=int8 is not possible for an NPU, which takes int4"),
        (["--target-weights", "fp16"], "weights=fp16 .* int4"),
        (["--asymmetric"], "symmetric=False .* True"),
        (["--ratio", "0.8"], r"ratio=0.8 .* 1\.0"),
        (["--group-size", "64"], "group_size=64 .* 128 or -1"),
    ],
)
def test_weights_that_an_npu_does_not_take_are_refused_before_anything_is_read(
    tmp_path: Path, options: list[str], named: str
) -> None:
    with pytest.raises(InvalidOption, match=f"{named}: leave it out, or"):
        main(["--for", "npu", "--target", "x", "--out", str(tmp_path / "pair"), *options])


def test_a_device_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="'npu': choose CPU, GPU, NPU"):
        export_pair("x", None, tmp_path / "pair", device="npu")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_large_target_for_an_npu_gets_one_scale_per_row(
    source: Path, asked: list[Compression], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.export.device.MOST_IN_GROUPS", 1000)
    export_pair(source, None, tmp_path / "pair", device="NPU")
    assert asked == [Compression("int4", group_size=-1)]


def test_neither_a_group_size_that_is_given_nor_other_devices_are_affected_by_that() -> None:
    int4, given = Compression("int4"), Compression("int4", group_size=128)
    assert grouped("NPU", int4, MOST_IN_GROUPS).settings["group_size"] == 128
    assert grouped("NPU", given, MOST_IN_GROUPS + 1) is given
    assert grouped("GPU", int4, MOST_IN_GROUPS + 1) is int4


def test_a_target_for_an_npu_is_symmetric_int4_and_was_checked_there(made: tuple[Path, list[str]]) -> None:
    pair, said = made
    facts = described(pair)
    target = facts["models"]["target"]
    assert (target["weights"], target["symmetric"], target["group_size"], target["ratio"]) == ("int4", True, 128, 1.0)
    assert target["precisions"]["i4"] > 0
    assert "u4" not in target["precisions"]
    through = "checked through OpenVINO's code for NPUs, computing on the CPU"
    assert facts["checks"]["devices"] == {"CPU": "checked", "NPU": through}
    assert said[-1] == "Comparing an answer for the NPU with the CPU"


@pytest.fixture(scope="module")
def answered(made: tuple[Path, list[str]]) -> tuple[list[int], list[int]]:
    """The tokens of a prompt and of its answer through OpenVINO's code for NPUs."""
    return device_check._answer_apart("NPU", made[0] / "target", NPU_ON_CPU)


@pytest.mark.parametrize("position", [0, 7, 15])
def test_a_device_that_chooses_an_unlikely_token_anywhere_is_noticed(
    made: tuple[Path, list[str]],
    answered: tuple[list[int], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    position: int,
) -> None:
    def wrong(device: str, target: Path, options: Any) -> tuple[list[int], list[int]]:
        prompt, tokens = answered
        changed = (tokens[position] + 100) % 300
        return prompt, [*tokens[:position], changed, *tokens[position + 1 :]]

    monkeypatch.setattr(device_check, "_answer_apart", wrong)
    with pytest.raises(DeviceCheckFailed, match=r"than on the CPU: .* logit [0-9.]+ below .* Update OpenVINO"):
        check_on("NPU", made[0] / "target", announce=print)


def test_a_device_whose_code_crashes_does_not_end_the_export(
    made: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_check, "RUN", "import os; print('about to'); os.abort()")
    with pytest.raises(DeviceCheckFailed, match=r"not run on the NPU \(.*\): choose another --group-size"):
        check_on("NPU", made[0] / "target", announce=print)


def test_a_target_that_fails_its_check_is_not_written_and_is_told_by_its_name(
    source: Path, asked: list[Compression], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NPU_ON_CPU, "NPUW_HORSES", "4")
    with pytest.raises(DeviceCheckFailed, match=f"{source} does not run on the NPU .*HORSES"):
        export_pair(source, None, tmp_path / "pair", device="NPU")
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_a_pair_for_one_is_made_and_not_called_checked(
    source: Path, asked: list[Compression], tmp_path: Path
) -> None:
    said: list[str] = []
    pair = export_pair(source, None, tmp_path / "pair", device="GPU", announce=said.append)
    assert said[-1] == "OpenVINO finds no GPU on this machine, so the pair is not checked on one"
    assert described(pair)["checks"]["devices"] == {"CPU": "checked"}


@pytest.mark.parametrize("name", ["GPU", "GPU.0"])
def test_where_there_is_a_gpu_the_pair_is_checked_on_it(
    made: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def load(model: Path, device: str, **properties: Any) -> Any:
        assert device == "GPU"
        return GENAI(model, "CPU", **limited_properties(), **properties)

    for module in (devices, device_check):
        monkeypatch.setattr(module, "device_names", lambda: ("CPU", name))
    monkeypatch.setattr(openvino_genai, "LLMPipeline", load)
    monkeypatch.setattr(device_check, "_answer_apart", device_check.answer)
    assert check_on("GPU", made[0] / "target", announce=print) == {"GPU": "checked"}
