"""`outrider doctor --report`, and what the doctor says of a GPU; see `elsewhere` for what stands in for one."""

from __future__ import annotations

import getpass
import re
from io import StringIO
from pathlib import Path

import openvino
import pytest
from rich.console import Console

from outrider.app.cli import doctor
from outrider.app.cli.issue_report import require_writable, write_report
from outrider.app.load_options import LoadOptions
from outrider.pipelines import InvalidOption
from outrider.pipelines.model import profile
from tests.app.commands import run
from tests.pipelines.devices.elsewhere import Elsewhere


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


def test_where_no_report_can_be_written_nothing_is_measured(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "report.md"):
        with pytest.raises(InvalidOption, match=r"--report .* cannot be written: give a file in a folder"):
            require_writable(path)
    with pytest.raises(InvalidOption, match=r"cannot be written \(.*\): give another file"):
        write_report(tmp_path, "CPU", "")


def test_a_device_that_is_not_there_is_named_in_the_report(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write_report(path, "GPU.7", "findings")
    assert "| GPU.7 | not found by OpenVINO |" in path.read_text(encoding="utf-8")


def test_of_a_gpu_the_doctor_tells_which_way_of_drafting_pays(embedded_pair, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(profile, "user_cache_path", lambda *args, **options: tmp_path)
    elsewhere = Elsewhere(embedded_pair, "GPU")
    console = Console(file=StringIO(), width=100)
    with elsewhere.present():
        assert doctor.examine(embedded_pair, console, load=LoadOptions("GPU"))
        assert not doctor.examine(embedded_pair, Console(file=StringIO()), load=LoadOptions("GPU", exact=True))
    shown = console.file.getvalue()
    rows = {name: shown.split(f"│ {name}")[1].split("\n")[0] for name in ("off", "lookup", "draft")}
    figures = {name: [float(each) for each in re.findall(r"[\d.]+", row)] for name, row in rows.items()}
    rates = {name: rate for name, (rate, *_) in figures.items()}
    for name, (rate, relative, tokens) in figures.items():
        assert relative == pytest.approx(rate / rates["off"], rel=0.02)
        assert (tokens == 1) == (name == "off")
    assert "6 MB and 1 MB of weights" in shown
    chosen = re.search(r"speculation='(\w+)'", shown)
    assert chosen is not None
    assert chosen[1] in ("off", "lookup")
