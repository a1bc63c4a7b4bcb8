"""The command line, run as a person runs it."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from outrider.app.cli import main
from outrider.app.load_options import LoadOptions
from outrider.pipelines import InvalidOption, LLMPipeline
from outrider.pipelines.devices.fallback import Fallback
from tests.on_gpu import gpu_present
from tests.on_npu import STAND_IN

from ..commands import OUTRIDER, run

PROMPT = "Repeat this function:\ndef area(width, height):\n    return width * height"
BRIEF = ("--exact", "--max-new-tokens", "48")


@pytest.fixture(scope="module")
def plain(embedded_pair: Path) -> str:
    """What the embedded pair answers, token by token."""
    done = run("generate", PROMPT, "--pair", embedded_pair, "--mode", "off", *BRIEF)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("chosen", "expected"), [(None, "é日"), ("cp1252", "é?")])
def test_what_is_written_to_a_file_needs_no_encoding_of_its_own(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, expected: str
) -> None:
    """Windows gives a file that the output goes to an encoding without most characters, if nobody chose one."""
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PYTHONIOENCODING", chosen)
    file = io.TextIOWrapper(written := io.BytesIO(), encoding="cp1252")
    main._write_everything(file)
    file.write("é日")
    file.flush()
    assert written.getvalue().decode(chosen or "utf-8") == expected


@pytest.fixture(scope="module")
def loaded() -> dict[str, LLMPipeline]:
    return {}


@pytest.fixture
def loaded_once(loaded: dict[str, LLMPipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands with the same options for loading share a pipeline."""
    load = LoadOptions.load

    def load_once(options: LoadOptions, pair: Path) -> LLMPipeline:
        wanted = f"{options} {pair}"
        if wanted not in loaded:
            loaded[wanted] = load(options, pair)
        return loaded[wanted]

    monkeypatch.setattr(LoadOptions, "load", load_once)


def test_generate_writes_the_answer_of_the_embedded_pair(plain: str) -> None:
    assert len(plain.strip()) > 0


def test_generate_takes_the_embedded_pair_by_itself(plain: str) -> None:
    assert run("generate", PROMPT, "--mode", "off", *BRIEF).stdout == plain


@pytest.mark.parametrize(
    "command", [("generate", PROMPT), ("doctor",), ("chat",), ("serve",)], ids=lambda given: given[0]
)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], LoadOptions()),
        (["--exact"], LoadOptions(exact=True)),
        (["--no-exact", "--cache-tokens", "64"], LoadOptions(exact=False, cache_tokens=64)),
    ],
    ids=["nothing", "exact", "the rest"],
)
def test_how_a_pair_is_to_be_loaded_reaches_it(monkeypatch, command, given, expected) -> None:
    seen: list[LoadOptions] = []

    def load(options: LoadOptions, pair: Path, **more: object) -> None:
        seen.append(options)
        raise InvalidOption("Not loaded.")

    monkeypatch.setattr(LoadOptions, "load", load)
    done = run(*command, *given)
    assert (seen, done.returncode) == ([expected], 2)
    assert "Not loaded." in done.stderr


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("mode", ["off", "lookup", "suffix", "recycling", "draft", "head", "chained", "auto"])
def test_json_is_one_object_with_the_same_text_in_every_mode(plain: str, mode: str) -> None:
    done = run("generate", PROMPT, "--mode", mode, *BRIEF, "--json")
    answer = json.loads(done.stdout)
    assert answer["text"] + "\n" == plain
    assert len(answer["token_ids"]) == answer["stats"]["new_tokens"] <= 48
    assert answer["finish_reason"] in ("stop", "length")
    figures = ("prompt_tokens", "new_tokens", "passes", "drafted", "accepted", "ttft_s", "tokens_per_s")
    assert set(figures) <= answer["stats"].keys()
    assert answer["stats"]["passes"] >= 1
    assert mode != "off" or answer["stats"]["drafted"] == 0


@pytest.mark.usefixtures("loaded_once")
def test_the_seed_decides_what_is_sampled_and_the_mode_does_not() -> None:
    def sampled(seed: int, mode: str) -> str:
        arguments = ("--temperature", "3", "--seed", str(seed), "--mode", mode, *BRIEF, "--json")
        return json.loads(run("generate", PROMPT, *arguments).stdout)["token_ids"]

    assert sampled(1, "off") == sampled(1, "draft") == sampled(1, "auto")
    assert sampled(1, "off") != sampled(2, "off")


@pytest.mark.usefixtures("loaded_once")
def test_the_prompt_can_come_from_standard_input(plain: str) -> None:
    assert run("generate", "-", "--mode", "off", *BRIEF, typed=PROMPT).stdout == plain


def test_standard_input_that_is_no_text_is_refused_before_anything_is_loaded(monkeypatch) -> None:
    monkeypatch.setattr(LoadOptions, "load", lambda *_: pytest.fail("the pair was loaded"))
    done = run("generate", "-", typed=b"caf\xe9")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("outrider: PROMPT is not text in UTF-8")


@pytest.mark.slow
def test_devices_properties_and_a_fallback_are_taken_from_the_command_line(npu_pair: Path, monkeypatch) -> None:
    loaded: list[LLMPipeline] = []
    load = LoadOptions.load
    monkeypatch.setattr(LoadOptions, "load", lambda *given: loaded.append(load(*given)) or loaded[-1])
    properties = [f"--property={name}={value}" for name, value in {**STAND_IN, "MAX_PROMPT_LEN": 256}.items()]
    options = ("--device", "NPU", "--draft-device", "GPU.1", "--fallback", "cpu", *properties)
    with gpu_present():
        done = run("generate", PROMPT, "--pair", npu_pair, *options, "--mode", "draft", *BRIEF[1:], "--json")
        assert done.returncode == 0, done.stderr
        assert [(each.device, each.draft_device) for each in loaded] == [("NPU", "GPU.1")]
        assert isinstance(loaded[0].backend, Fallback)
        refused = run("generate", PROMPT * 20, "--pair", npu_pair, *options)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "prepared for 256" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", ""], "The prompt is empty"),
        (["generate", "x", "--pair", "no/such/folder"], "There is no folder"),
        (["chat", "--pair", "no/such/folder"], "There is no folder"),
        (["doctor", "nobody"], "no pair of that name: give a folder that `outrider export` made, or one of the names"),
        (["chat", "--pairs", "no/such/folder"], "There is no folder no/such/folder to take pairs from"),
        (["generate", "x", "--device", "sledge"], "no device 'sledge'"),
        (["chat", "--device", "sledge"], "choose one of 'CPU'"),
        (["generate", "word " * 20000], "shorten the prompt"),
        (["generate", "caf\udce9"], "PROMPT is not text in UTF-8"),
        (["generate", "x", "--pair", "a" * 300], "File name too long"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("outrider: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_pair_without_a_file_says_which(embedded_pair: Path, tmp_path: Path) -> None:
    for file in (embedded_pair / "target").iterdir():
        if file.name != "openvino_detokenizer.bin":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    done = run("generate", "x", "--pair", tmp_path)
    assert done.returncode == 2
    assert "openvino_detokenizer.bin" in done.stderr
    assert "export the pair again" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["generate", "x", "--mode", "fast"], ["generate", "x", "--temperature", "-1"], ["generate"], ["ride"], ["--fast"]],
)
def test_what_the_command_does_not_know_is_refused(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Usage" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("outrider 0.")
    assert {"chat", "generate", "export"} <= set(run("--help").stdout.split())
    told = run("export", "--help").stdout
    for words in ("--target-weights", "--trust-remote-code", "ORG/NAME[@REVISION]"):  # whole, and brackets too
        assert words in told
    assert "standard input" in run("generate", "-h").stdout
    assert "The pair's name in the catalogue." in run("models", "pull", "--help").stdout


def test_a_taken_port_is_said_plainly() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run("chat", "--port", str(port))
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT and SIGTERM for a single process")
@pytest.mark.parametrize(
    ("number", "proxy"),
    [
        (signal.SIGINT, {"all_proxy": "socks://127.0.0.1:9/"}),
        (signal.SIGTERM, {"HTTP_PROXY": "http://127.0.0.1:9", "no_proxy": "example.org"}),
    ],
)
def test_chat_prints_its_address_serves_there_and_leaves_nothing_when_it_is_ended(
    number: int, proxy: dict[str, str], tmp_path: Path
) -> None:
    """Whatever proxy, which nobody listens at, is to be used for other machines."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*OUTRIDER, "chat", "--port", str(port)]
    pipe, uploads = subprocess.PIPE, {**os.environ, **proxy, "GRADIO_TEMP_DIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=uploads) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert f"http://127.0.0.1:{port}" in line
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            assert "Outrider" in answer.read().decode()
        if sys.platform == "linux":  # where the whole of 127.0.0.0/8 is this machine
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=60)
        (folder,) = tmp_path.glob("outrider-*")
        (folder / "private.txt").write_text("uploaded")
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert "Traceback" not in errors
    assert not folder.exists()
    assert process.returncode in (0, 130)


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
@pytest.mark.parametrize("arguments", [["--version"], ["models", "list"]])
def test_a_full_disk_is_said_in_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*OUTRIDER, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "outrider: Nothing more can be written (No space left on device): make room.\n"


def test_a_reader_that_has_read_enough_ends_the_command_silently() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*OUTRIDER, "--version"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_lossy_answer_says_so_in_json() -> None:
    arguments = ("generate", PROMPT, "--mode", "draft", "--max-new-tokens", "24", "--json")
    lossy = json.loads(run(*arguments, "--acceptance", "threshold").stdout)
    assert (lossy["lossy"], lossy["stats"]["acceptance"]) == (True, "threshold")
    exact = json.loads(run(*arguments).stdout)
    assert (exact["lossy"], exact["stats"]["acceptance"]) == (False, "exact")
