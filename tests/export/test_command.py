from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.export import command, device_check
from outrider.export.command import main
from outrider.export.errors import MissingExtra
from outrider.pipelines.errors import InvalidOption

LIMIT = 1200  # seconds, for a machine that has other work to do
RUN = "import sys; from outrider.export.command import main; main(sys.argv[1:])"


def start(*arguments: object, code: str = RUN) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Exports:
    """Exports in processes of their own that come from one which has imported what an export needs: that takes most of
    the time of a small one."""

    CODE = f"""
import json, os, sys
import nncf, optimum.exporters.openvino, optimum.intel, transformers
for line in sys.stdin:
    job = json.loads(line)
    if not (child := os.fork()):
        os.dup2(os.open(job["errors"], os.O_WRONLY), sys.stderr.fileno())
        break
    print("began", child, flush=True)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
sys.argv[1:] = job["arguments"]
{RUN}
"""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._errors = folder / "errors"
        os.mkfifo(self._errors)

    def kill_while_converting(self, target: Path, out: Path, number: int) -> int:
        """Send the signal once the conversion is under way and files are there; the exit status."""
        arguments = ["--target", str(target), "--out", str(out)]
        self._tell(json.dumps({"arguments": arguments, "errors": str(self._errors)}))
        with self._errors.open(encoding="utf-8") as errors:
            export = self._told("began")
            try:
                for line in errors:
                    if "Compressing the target" in line:
                        break
                assert any(out.parent.glob(".*/target/openvino_model.bin"))
            finally:
                os.kill(export, number)
                for _ in errors:
                    pass
                status = self._told("ended")
        return status

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _told(self, word: str) -> int:
        assert self._process.stdout is not None
        told = self._process.stdout.readline().split()
        assert told[0] == word
        return int(told[1])


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exports]:
    command = [sys.executable, "-c", Exports.CODE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Exports(process, tmp_path_factory.mktemp("exports"))
        process.communicate(timeout=LIMIT)


def test_the_command_makes_a_pair_and_says_where(target: Path, draft: Path, tmp_path: Path) -> None:
    out = tmp_path / "pair"
    export = start("--target", target, "--draft", draft, "--out", out, "--draft-weights", "int4", "--group-size", 32)
    printed, told = export.communicate(timeout=LIMIT)
    assert export.returncode == 0, told
    assert printed.startswith(f"Made {out}. ")
    assert printed.count("\n") == 1
    assert all(re.fullmatch(r" +[0-9]+\.[0-9] s  [A-Z].*", line) for line in told.splitlines()), told  # our words alone
    assert "Converting the target" in told
    assert "Compressing the draft to int4" in told
    assert (out / "pair.json").is_file()
    assert (out / "draft" / "openvino_model.xml").is_file()


@pytest.mark.parametrize(
    ("device", "there", "told"),
    [
        ("CPU", "CPU", "Try it: outrider chat --pair PAIR\n"),
        ("NPU", "NPU", "Try it: outrider chat --pair PAIR --device NPU\n"),
        ("GPU", "GPU.1", "Try it: outrider chat --pair PAIR --device GPU\n"),
        ("GPU", "NPU", "Try it on a machine with a GPU: outrider chat --pair PAIR --device GPU\n"),
        (
            "NPU",
            "CPU",
            (
                "Try it on a machine with an NPU: outrider chat --pair PAIR --device NPU; here the CPU can stand in "
                "for one: outrider chat --pair PAIR --device NPU --property NPU_USE_NPUW=YES --property "
                "NPUW_DEVICES=CPU --property NPUW_ONLINE_PIPELINE=NONE\n"
            ),
        ),
    ],
)
def test_the_command_that_is_told_at_the_end_works_on_this_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    there: str,
    told: str,
) -> None:
    monkeypatch.setattr(command, "export_pair", lambda target, draft, out, **options: out)
    monkeypatch.setattr(device_check, "device_names", lambda: ("CPU", there))
    monkeypatch.setattr(command, "stop_cleanly", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main(["--target", "x", "--out", str(tmp_path / "pair"), "--for", device])
    assert not ended.value.code
    out = str(tmp_path / "pair")
    assert capsys.readouterr().out.replace(out, "PAIR") == f"Made PAIR. {told}"


@pytest.mark.parametrize(("device", "is_told"), [("CPU", False), ("GPU", True), ("NPU", True)])
def test_a_head_on_a_device_that_cannot_use_it_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], device: str, is_told: bool
) -> None:
    out = tmp_path / "pair"
    (out / "head").mkdir(parents=True)
    monkeypatch.setattr(command, "export_pair", lambda target, draft, out, **options: out)
    main_ends_well(["--target", "x", "--out", str(out), "--for", device])
    assert ("The head drafts on the CPU alone" in capsys.readouterr().out) is is_told


@pytest.mark.parametrize("name", ["my pair", "that's&mine"])
def test_the_command_that_is_told_at_the_end_takes_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setattr(command, "export_pair", lambda target, draft, out, **options: out)
    main_ends_well(["--target", "x", "--out", str(tmp_path / name)])
    told = capsys.readouterr().out.strip().partition("Try it: ")[2]
    assert shlex.split(told, posix=os.name != "nt")[-1].strip('"') == str(tmp_path / name)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_export_that_is_asked_to_stop_leaves_nothing(
    exports: Exports, target: Path, tmp_path: Path, name: str
) -> None:
    number = getattr(signal, name)
    assert exports.kill_while_converting(target, tmp_path / "pair", number) not in (0, -number)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(("name", "raised"), [("SIGTERM", SystemExit), ("SIGINT", KeyboardInterrupt)])
def test_a_signal_that_arrives_where_exceptions_are_ignored_ends_the_command(
    name: str, raised: type[BaseException]
) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(getattr(signal, name))

    def wait() -> None:
        Finalized()
        time.sleep(5)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        command.stop_cleanly()
        with pytest.raises(raised):
            wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
def test_an_export_that_is_killed_leaves_nothing_at_out_and_the_next_one_cleans_up(
    exports: Exports, target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "pair"
    assert exports.kill_while_converting(target, out, signal.SIGKILL) == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".pair.outrider-export"]
    main_ends_well(["--target", str(target), "--out", str(out)])
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


def main_ends_well(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_without_the_extra_the_line_that_installs_it_is_shown(tmp_path: Path) -> None:
    without = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "optimum", "nncf", "safetensors"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
"""
    export = start("--target", "x", "--out", tmp_path / "pair", code=without + RUN)
    told = export.communicate(timeout=LIMIT)[1]
    assert MissingExtra.__name__ in told
    assert "torch, transformers, safetensors, nncf, optimum-intel" in told
    assert 'pip install "outrider[export]"' in told
    assert list(tmp_path.iterdir()) == []


def test_the_runtime_never_imports_what_only_an_export_needs() -> None:
    code = """
import sys
import outrider.export.command
print(sorted({"torch", "transformers", "optimum", "nncf"} & sys.modules.keys()))
"""
    assert start(code=code).communicate(timeout=LIMIT)[0].strip() == "[]"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--draft-weights", "int4"], "--draft-weights int4"),
        (["--head-weights", "int4"], "--head-weights int4 requires --draft or --head"),
        (["--group-size", "64"], "group_size=64"),
        (["--target-weights", "fp16", "--asymmetric"], "symmetric=False"),
        (["--target-weights", "int4", "--ratio", "2"], "ratio=2"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(tmp_path: Path, options: list[str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        main(["--target", "x", "--out", str(tmp_path / "pair"), *options])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Path.cwd().anchor, "is a whole disk: name a folder on it"),
        pytest.param(
            "~nobody-of-this-name/pair",
            "is in a home folder that is not known",
            marks=pytest.mark.skipif(os.name == "nt", reason="Windows makes up where the home of another user is"),
        ),
    ],
)
def test_an_output_that_can_be_no_folder_is_refused(given: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=f"--out {re.escape(given)} {said}"):
        main(["--target", "x", "--out", given])


def test_a_tilde_in_out_is_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "export_pair", lambda target, draft, out, **options: out)
    main_ends_well(["--target", "x", "--out", "~/pairs/my"])
    assert capsys.readouterr().out.startswith(f"Made {Path.home() / 'pairs' / 'my'}. ")


@pytest.mark.parametrize("options", [["--target-weights", "int2"], ["--nonsense"], ["--ratio", "much"]])
def test_an_option_that_is_not_known_is_refused(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--target", "x", "--out", str(tmp_path / "pair"), *options])
    assert ended.value.code == 2


def test_steps_carry_the_time_since_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    from outrider.export.command import clocked

    announce = clocked()
    time.sleep(0.15)
    announce("Converting")
    seconds, text = capsys.readouterr().err.split(" s  ")
    assert 0.1 <= float(seconds) < 5
    assert text == "Converting\n"
