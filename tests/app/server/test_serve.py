"""`outrider serve`, run as a person runs it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import httpx
import openai
import pytest
import uvicorn

from outrider.app.server.serve import _Web

from ..commands import OUTRIDER, run
from .serving import AREA, LOCAL, MODEL, PATIENCE_S, REPEAT, user

SERVE = [*OUTRIDER, "serve"]
KEY = "0123456789abcdef"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process, its address, and the lines that it printed until it was ready."""
    port = free_port()
    command = [*SERVE, "--port", str(port), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            while not (lines and lines[-1].startswith("Ready")):
                lines.append(process.stdout.readline())
                assert lines[-1], process.communicate(timeout=PATIENCE_S)
            yield process, f"http://{LOCAL}:{port}", lines
        finally:
            process.kill()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT and SIGTERM for a single process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_cleanly_when_told_to(number: signal.Signals) -> None:
    with serving("--exact") as (process, url, lines):
        assert lines[0] == "Loading pyscout on CPU\n"
        assert f"{url}/v1" in lines[1]
        assert "this machine only" in lines[1]
        assert re.match(r"Ready after \d+\.\d s\. Same seed, same text, in every mode\. Ctrl-C ends it\.$", lines[-1])
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            stream = client.completions.create(model=MODEL, prompt="x = [", max_tokens=2000, temperature=0, stream=True)
            next(stream)
            process.send_signal(number)
            with pytest.raises(openai.APIError, match="shutting down"):
                list(stream)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert output.strip() == "Ended."
    assert errors == ""
    assert process.returncode == 0


def test_a_second_signal_does_not_make_it_end_in_the_middle_of_a_pass() -> None:
    worker = Mock()
    web = _Web(uvicorn.Config(Mock()), worker)
    for _ in range(2):
        web.handle_exit(signal.SIGINT, None)
        assert (web.should_exit, web.force_exit) == (True, False)
    worker.end_answers.assert_called()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for a single process")
def test_it_can_be_ended_while_it_warms_up() -> None:
    command = [*SERVE, "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("Warming up"):
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert output.endswith("Ended.\n")
    assert "Ready" not in output
    assert (errors, process.returncode) == ("", 0)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM that a process can catch")
def test_it_serves_on_when_the_program_that_started_it_no_longer_reads_what_it_says() -> None:
    port = free_port()
    command = [*SERVE, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("Warming up"):
                assert process.poll() is None
            process.stdout.close()
            with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=PATIENCE_S) as client:
                assert client.completions.create(model="pyscout", prompt="x", max_tokens=3).choices
            process.terminate()
            assert process.wait(PATIENCE_S) in (0, 120), "the latter as Python itself cannot say anything"
        finally:
            process.kill()


@pytest.mark.slow
def test_what_is_loaded_goes_on_when_the_pair_is_deleted(embedded_pair: Path, tmp_path: Path) -> None:
    pair = tmp_path / "mine"
    shutil.copytree(embedded_pair, pair)
    with serving("--pair", pair) as (process, url, lines):
        assert "mine" in lines[0]
        shutil.rmtree(pair)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            for mode in ("off", "auto"):
                answer = client.chat.completions.create(
                    model="mine", messages=user(REPEAT), temperature=0, extra_body={"speculation": mode},
                    response_format={"type": "text"},
                )  # fmt: skip
                assert answer.choices[0].message.content == AREA
            assert client.completions.create(model="mine", prompt="x", max_tokens=3, logprobs=1).choices
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        assert process.poll() is None


@pytest.mark.slow
def test_other_machines_are_let_in_with_a_key_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    with serving("--host", "0.0.0.0", "--api-key-file", keys) as (_, url, lines):
        assert "every machine that can connect, with a key" in lines[1]
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "--api-key-file"),
        (["--host", "no.such.host.invalid", "--api-key-file", "KEYS"], "cannot listen on no.such.host.invalid"),
        (["--host", "192.0.2.1", "--api-key-file", "KEYS"], "an address of this machine"),
        (["--api-key-file", "no/such/file"], "cannot be read"),
        (["--cors-origin", "localhost"], "is not an origin"),
        (["--request-seconds", "nan"], "is not possible"),
        (["--pair", "no/such/folder"], "There is no folder"),
        (["--device", "sledge"], "no device 'sledge'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refusal_is_one_line_and_exit_code_2(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "KEYS").write_text(f"{KEY}\n")
    given = [str(tmp_path / "KEYS") if argument == "KEYS" else argument for argument in arguments]
    done = run("serve", "--port", str(free_port()), *given)
    assert done.returncode == 2
    assert done.stderr.startswith("outrider: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_taken_port_is_said_plainly_before_anything_is_loaded() -> None:
    with socket.socket() as holder:
        holder.bind((LOCAL, 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run("serve", "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot listen on {LOCAL}:{port}" in done.stderr
    assert "stop the program that uses it" in done.stderr
