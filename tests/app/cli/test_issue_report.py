"""`outrider doctor --report`, and what the doctor says of a GPU; see `elsewhere` for what stands in for one."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import weakref
from io import StringIO
from pathlib import Path
from typing import Any

import openvino
import pytest
from rich.console import Console

from outrider.app.cli import doctor
from outrider.app.cli.issue_report import REPORT, write_report
from outrider.app.cli.scrubbing import scrubbed
from outrider.app.load_options import LoadOptions
from outrider.app.writable import require_writable
from outrider.pipelines import InvalidOption
from outrider.pipelines.devices import genai_loading
from outrider.pipelines.model import profile
from tests.app.commands import run
from tests.on_gpu import gpu_present
from tests.on_npu import STAND_IN
from tests.pipelines.devices.elsewhere import Elsewhere, Faulty


@pytest.mark.slow
def test_a_report_has_the_findings_and_the_versions_and_nothing_personal(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    done = run("doctor", "--report", str(path))
    assert "The report is in" in done.stdout
    text = path.read_text(encoding="utf-8")
    for part in ("# Outrider on CPU", f"| openvino | {openvino.__version__.split('-')[0]}", "| CPU FULL_DEVICE_NAME |",
                 "Time of a pass by new tokens", "Expected speedup by acceptance rate", "exactness"):  # fmt: skip
        assert part in text, part
    assert str(tmp_path) not in text
    assert str(Path.home()) not in text
    assert not re.search(rf"\b{re.escape(getpass.getuser())}\b", text)


def test_where_no_report_can_be_written_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "report.md"):
        with pytest.raises(InvalidOption, match=r"--report .* cannot be written: give a file in a folder"):
            require_writable(path, REPORT)
    with pytest.raises(InvalidOption, match=r"cannot be written \(.*\): give another file"):
        write_report(tmp_path, LoadOptions(), tmp_path, "")
    (tmp_path / "old.md").touch()
    for path in (tmp_path / "old.md", tmp_path / "new.md"):
        require_writable(path, REPORT)
    with pytest.raises(InvalidOption, match="cannot be written"):
        require_writable(tmp_path / ("x" * 5000), REPORT)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as for a user without permissions
    for path in (tmp_path / "old.md", tmp_path / "new.md"):
        with pytest.raises(InvalidOption, match="cannot be written"):
            require_writable(path, REPORT)


def test_a_device_that_is_not_there_is_named_in_the_report(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write_report(path, LoadOptions("GPU.7"), tmp_path, "findings")
    assert "| GPU.7 | not found by OpenVINO |" in path.read_text(encoding="utf-8")


def test_a_device_is_known_by_its_other_name_and_by_its_driver(tmp_path: Path, monkeypatch) -> None:
    known = {"FULL_DEVICE_NAME": "Arc", "GPU_DRIVER_VERSION": "32.0.101", "OPTIMIZATION_CAPABILITIES": ["FP16", "BIN"]}

    def get_property(core: openvino.Core, device: str, name: str) -> object:
        if device != "GPU.0" or name not in known:
            raise RuntimeError("no such property")
        return known[name]

    monkeypatch.setattr(openvino.Core, "get_property", get_property)
    path = tmp_path / "report.md"
    write_report(path, LoadOptions("GPU.0"), tmp_path, "findings")
    text = path.read_text(encoding="utf-8")
    for row in ("| GPU.0 FULL_DEVICE_NAME | Arc |", "| GPU.0 GPU_DRIVER_VERSION | 32.0.101 |",
                "| GPU.0 OPTIMIZATION_CAPABILITIES | FP16, BIN |"):  # fmt: skip
        assert row in text
    assert "GPU.0 | not found" not in text


def test_a_report_tells_how_the_pair_was_loaded_and_what_stood_in(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    given = {**STAND_IN, "MAX_PROMPT_LEN": 64, "CACHE_DIR": str(tmp_path), "OTHER": "C:\\Users\\ada"}
    write_report(path, LoadOptions("NPU", "GPU.1", properties=given), tmp_path, "findings")
    text = path.read_text(encoding="utf-8")
    title = "# Outrider on NPU, with the draft model on GPU.1, where CPU stood in for an NPU\n"
    for part in (title, "| draft device | GPU.1 |", "| engine | outrider |",
                 "| MAX_PROMPT_LEN | 64 |", "| NPUW_DEVICES | CPU |", "| CACHE_DIR | (a path) |",
                 "| OTHER | (a path) |", "| GPU.1 | not found by OpenVINO |"):  # fmt: skip
        assert part in text, part
    write_report(path, LoadOptions("GPU.7", speculation="lookup"), tmp_path, "findings")
    text = path.read_text(encoding="utf-8")
    for part in ("# Outrider on GPU.7\n", "| engine | genai |", "| speculation | lookup |"):
        assert part in text, part


def test_the_folders_of_the_user_are_taken_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home" / "ada")
    pair = tmp_path / "secret" / "qwen"
    text = f"{pair}/target for {tmp_path}/home/ada/.cache/x and {tmp_path}/home/ada"
    assert scrubbed(text, pair) == "qwen/target for x and ~"
    assert scrubbed("no /data/ada/notes.txt and no C:\\ada\\x.txt", pair) == "no notes.txt and no x.txt"
    monkeypatch.chdir(tmp_path)
    assert scrubbed(f"{pair}/target or secret/qwen/target", Path("secret/qwen")) == "qwen/target or qwen/target"
    assert scrubbed("qwen is not replaced", Path("qwen")) == "qwen is not replaced"
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert scrubbed("a/b", pair) == "a/b"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that are timed are short."""
    for module in (doctor, genai_loading):
        monkeypatch.setattr(module, "TRIED_TOKENS", 12)


@pytest.fixture
def secret_pair(embedded_pair: Path, tmp_path: Path) -> Path:
    """A pair in a folder whose name is nobody's business."""
    return Path(shutil.copytree(embedded_pair, tmp_path / "private" / "mine"))


def test_a_pair_that_cannot_be_loaded_is_reported_without_its_folder(secret_pair, tmp_path, monkeypatch) -> None:
    def compile_model(core: openvino.Core, model: object, device: str, properties: object) -> None:
        raise RuntimeError(f"Check failed at plugin.cpp:3:\nkernel of {secret_pair}/target failed.\n")

    path = tmp_path / "report.md"
    with gpu_present():
        monkeypatch.setattr(openvino.Core, "compile_model", compile_model)
        done = run("doctor", secret_pair, "--device", "GPU", "--engine", "outrider", "--report", path)
    assert done.returncode == 2
    assert f"could not compile {secret_pair}" in done.stderr, "the user is told where"
    text = path.read_text(encoding="utf-8")
    for part in ("# Outrider on GPU\n", "| openvino |", "UnsupportedDevice: OpenVINO could not compile mine/target",
                 "RuntimeError: Check failed at plugin.cpp:3:\nkernel of mine/target failed"):  # fmt: skip
        assert part in text, part
    assert str(tmp_path) not in text


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
def test_a_way_of_drafting_that_cannot_be_loaded_is_reported_without_its_folder(
    secret_pair, tmp_path, monkeypatch
) -> None:
    elsewhere, path = Elsewhere(secret_pair, "GPU"), tmp_path / "report.md"
    real = elsewhere._load

    def load(model: Path, device: str, **properties: object) -> object:
        if "draft_model" in properties:
            raise RuntimeError(f"no kernel for {model}")
        return real(model, device, **properties)

    monkeypatch.setattr(elsewhere, "_load", load)
    with elsewhere.present():
        done = run("doctor", secret_pair, "--device", "GPU", "--speculation", "off", "--report", path)
    assert done.returncode == 0
    text = path.read_text(encoding="utf-8")
    told = re.sub(r"[\s│]", "", text)
    assert "OpenVINOcouldnotloadmine/targetonGPU(nokernelformine/target)" in told
    assert re.sub(r"[\s│]", "", str(tmp_path)) not in told


class Alone(Elsewhere):
    """Fails if a pipeline is loaded while another one is in memory."""

    before: weakref.ref[Faulty] | None = None

    def _load(self, model: Path, device: str, **properties: Any) -> Faulty:
        assert self.before is None or self.before() is None, "two pipelines are in memory"
        faulty = super()._load(model, device, **properties)
        self.before = weakref.ref(faulty)
        del self.faulty
        return faulty


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
def test_of_a_gpu_the_doctor_tells_which_way_of_drafting_pays(embedded_pair, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(profile, "user_cache_path", lambda *args, **options: tmp_path)
    elsewhere = Alone(embedded_pair, "GPU")
    console = Console(file=StringIO(), width=100)
    with elsewhere.present():
        assert doctor.examine(embedded_pair, console, load=LoadOptions("GPU", "GPU.1"))
        monkeypatch.setattr(doctor, "_genai_speeds", lambda *arguments: "")  # which were told already
        assert not doctor.examine(embedded_pair, Console(file=StringIO()), load=LoadOptions("GPU", exact=True))
    shown = console.file.getvalue()
    ways = ("off", "lookup", "draft on CPU", "draft on GPU", "draft on GPU.1")
    rows = {name: shown.split(f"│ {name} ")[1].split("\n")[0] for name in ways}
    figures = {name: [float(each) for each in re.findall(r"\d[\d.]*", row)] for name, row in rows.items()}
    rates = {name: rate for name, (rate, *_) in figures.items()}
    for name, (rate, relative, tokens) in figures.items():
        assert relative == pytest.approx(rate / rates["off"], rel=0.02, abs=0.01)
        assert (tokens == 1) == (name == "off")
    assert "6 MB and 1 MB of weights" in shown
    chosen = re.search(r"speculation='(\w+)'", shown)
    assert chosen is not None
    assert chosen[1] in ("off", "lookup")
