"""`outrider models` as a person runs it, with a stand-in for the hub that serves the embedded pair."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.app import progress
from outrider.app.cli import models as commands
from outrider.pipelines import LLMPipeline, Pair
from outrider.pipelines.model.tuning import CANDIDATES
from tests.hub import SHA, Hub, serving
from tests.on_gpu import gpu_present

from .machine import DRAFT, NAME, TARGET, Machine

WEIGHTS = (TARGET, "openvino_model.bin")
MOVED = "76543210" * 5  # a commit
PROMPT = "Repeat this function:\ndef area(width, height):\n    return width * height"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the data folder is the user's own")
CHUNK = 10 << 20  # bytes that the hub's library takes at once
PATIENCE_S = 300


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def models(embedded_pair: Path) -> dict[str, Mapping[str, bytes]]:
    return {TARGET: files_of(embedded_pair / "target"), DRAFT: files_of(embedded_pair / "draft")}


@pytest.fixture
def machine(models: dict[str, Mapping[str, bytes]], tmp_path: Path) -> Iterator[Machine]:
    with serving(Hub(dict(models))) as hub:
        yield Machine(hub, tmp_path)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was pulled is neither measured nor examined, which other tests do."""
    monkeypatch.setattr("outrider.models.pull.fastest_properties", lambda folder: {})
    monkeypatch.setattr("outrider.app.cli.doctor.examine", lambda pair, console, **options: True)


@pytest.fixture(scope="module")
def pulled(models: dict[str, Mapping[str, bytes]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine on which the pair was pulled."""
    remote = {name: {**files, "modeling.py": b"print()"} for name, files in models.items()}
    with serving(Hub(remote)) as hub:
        hub.stall[WEIGHTS] = 1000
        hub.go.set()  # the connection breaks there, once
        machine = Machine(hub, tmp_path_factory.mktemp("machine"))
        done = machine.run("models", "pull", NAME)
        assert done.returncode == 0, done.stderr
        assert hub.fetched.count(WEIGHTS) == 2
        assert "exactness" in done.stdout  # the doctor's findings
        assert f"outrider chat --pair {NAME}" in done.stdout
        assert "apache-2.0" in done.stderr
        yield machine


@pytest.mark.slow
def test_a_pair_is_measured_on_the_devices_that_it_is_pulled_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.models.pull.fastest_properties", lambda folder: {})  # of the CPU
    with gpu_present():
        done = machine.run("models", "pull", NAME, "--draft-device", "GPU.1")
    assert done.returncode == 0, done.stderr
    assert "on GPU.1" in done.stdout
    assert f"Try it: outrider chat --pair {NAME} --draft-device GPU.1\n" in done.stdout


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (["--device", "GPU"], "--device GPU"),
        (["--device", "GPU", "--draft-device", "GPU"], "--device GPU --draft-device GPU --speculation draft"),
    ],
)
def test_what_is_suggested_for_a_gpu_is_possible(machine: Machine, devices: list[str], options: str) -> None:
    with gpu_present():
        done = machine.run("models", "pull", NAME, *devices)
    assert f"Try it: outrider chat --pair {NAME} {options}\n" in done.stdout


@pytest.mark.parametrize("option", ["--device", "--draft-device"])
def test_nothing_is_downloaded_for_a_device_that_is_not_there(machine: Machine, option: str) -> None:
    done = machine.run("models", "pull", NAME, option, "GPU.7")
    assert done.returncode == 2
    assert "no device 'GPU.7'" in done.stderr
    assert machine.hub.fetched == []


def test_a_pulled_pair_says_where_it_came_from_and_holds_what_the_hub_lists(
    pulled: Machine, embedded_pair: Path
) -> None:
    pair = pulled.pairs / NAME
    described = json.loads((pair / "pair.json").read_text(encoding="utf-8"))
    assert described["models"]["target"]["source"] == TARGET
    assert described["models"]["draft"]["revision"] == SHA
    assert described["models"]["draft"]["licence"] == "apache-2.0"
    assert described["models"]["target"]["properties"] in list(map(dict, CANDIDATES)), "measured on this machine"
    for role in ("target", "draft"):
        assert files_of(pair / role) == files_of(embedded_pair / role)
    assert [path.name for path in pulled.pairs.iterdir()] == [NAME]


def test_the_list_shows_what_was_pulled_with_its_size(pulled: Machine) -> None:
    here = pulled.listed()["pulled"]
    assert here["bytes"] == sum(path.stat().st_size for path in (pulled.pairs / NAME).rglob("*") if path.is_file())
    assert here["problem"] is None
    assert pulled.listed("phi-3-mini")["pulled"] is None
    pulled.settings = {"COLUMNS": "160"}
    table = pulled.run("models", "list").stdout
    assert "pulled, 7.8 MB" in table
    assert "None of these models was downloaded" in " ".join(table.split())
    pulled.settings = {"COLUMNS": "60"}
    assert "…" not in pulled.run("models", "list").stdout, "a word is cut"


def test_a_pulled_pair_answers_by_its_name_as_the_same_files_do_elsewhere(pulled: Machine, embedded_pair: Path) -> None:
    arguments = ("--json", "--mode", "draft", "--max-new-tokens", "32")
    named = pulled.run("generate", PROMPT, "--pair", NAME, *arguments)
    assert named.returncode == 0, named.stderr
    elsewhere = LLMPipeline(embedded_pair, exact=True, **Pair.open(pulled.pairs / NAME).properties)
    expected = list(elsewhere.generate(PROMPT, mode="off", max_new_tokens=32).generations[0].token_ids)
    assert json.loads(named.stdout)["token_ids"] == expected
    pipeline = LLMPipeline(pulled.pairs / NAME, exact=True)
    drafted = pipeline.generate(PROMPT, mode="draft", num_assistant_tokens=4, max_new_tokens=32)
    assert list(drafted.generations[0].token_ids) == expected
    assert drafted.stats[0].drafted_by["draft_model"] > 0


def test_the_doctor_and_the_benchmark_take_the_name_too(pulled: Machine) -> None:
    assert "id for id" in pulled.run("doctor", NAME).stdout
    refused = pulled.run("bench", NAME, "--mode", "nonsense")
    assert "one that this pair can do" in refused.stderr  # it was found and loaded


def test_a_pair_that_is_there_is_not_pulled_again(pulled: Machine) -> None:
    again = pulled.run("models", "pull", NAME)
    assert again.returncode == 2
    assert "pulled before" in again.stderr


def test_a_pair_is_removed_only_after_a_yes(machine: Machine) -> None:
    (machine.pairs / "mine").mkdir(parents=True)
    (machine.pairs / "mine" / "pair.json").write_text("{}")
    assert machine.run("models", "remove", "mine", typed="n\n").returncode == 1
    assert machine.run("models", "remove", "mine", typed="").returncode == 1
    assert (machine.pairs / "mine" / "pair.json").exists()
    assert machine.listed("mine")["pulled"]["problem"]  # an empty pair is listed with what is wrong
    assert machine.run("models", "remove", "mine", "--yes").returncode == 0
    assert list(machine.pairs.iterdir()) == []


@pytest.mark.usefixtures("unmeasured")
def test_a_pull_of_the_target_alone_tells_its_licence_alone_and_into_a_file_writes_no_empty_lines(
    machine: Machine,
) -> None:
    done = machine.run("models", "pull", NAME, "--without-draft")
    assert done.returncode == 0, done.stderr
    assert f"{TARGET}: apache-2.0" in done.stderr
    assert DRAFT not in done.stderr
    assert " of " not in done.stderr  # it was quick
    assert "" not in done.stderr.splitlines()


@pytest.mark.usefixtures("unmeasured")
def test_a_pull_into_a_file_tells_now_and_then_how_far_it_is(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "RARELY_S", 0.0)
    done = machine.run("models", "pull", NAME, "--without-draft")
    told = re.findall(r"^(.+) of (.+)$", done.stderr, re.MULTILINE)
    assert len(told) >= len(machine.hub.repositories[TARGET])
    assert told[-1][0] == told[-1][1]  # all of it


@pytest.mark.parametrize("name", ["../pairs/mine", "..", ".", "/", "nothing", ".hidden", "link"])
def test_what_is_not_in_the_folder_is_not_removed(machine: Machine, name: str) -> None:
    for folder in ("mine", ".hidden"):
        (machine.pairs / folder).mkdir(parents=True)
    elsewhere = machine.folder / "elsewhere"
    elsewhere.mkdir()
    (machine.pairs / "link").symlink_to(elsewhere)
    refused = machine.run("models", "remove", name, "--yes")
    assert refused.returncode == 2
    assert "nothing is removed" in refused.stderr
    assert elsewhere.is_dir()
    assert {path.name for path in machine.pairs.iterdir()} == {"mine", ".hidden", "link"}


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_an_interrupted_pull_is_not_listed_and_goes_on_in_the_middle_of_a_file(machine: Machine) -> None:
    machine.hub.repositories[TARGET] = padded = {**machine.hub.repositories[TARGET]}
    padded["openvino_model.bin"] += bytes(3 * CHUNK)  # after the weights, where nothing reads
    machine.hub.stall[WEIGHTS] = 2 * CHUNK + 5
    process = machine.start("models", "pull", NAME)
    try:
        assert machine.hub.stalled.wait(PATIENCE_S)
        part = wait_for_part(machine, 2 * CHUNK)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        machine.hub.go.set()
    assert process.returncode == 130
    assert "resumes it" in errors
    assert "Traceback" not in errors
    assert part.stat().st_size == 2 * CHUNK
    assert machine.listed()["pulled"] is None
    assert machine.listed()["unfinished_bytes"] > 2 * CHUNK
    refused = machine.run("generate", PROMPT, "--pair", NAME)
    assert f"outrider models pull {NAME}" in refused.stderr

    fetched_before = set(machine.hub.fetched) - {WEIGHTS}
    machine.hub.fetched.clear()
    done = machine.run("models", "pull", NAME)
    assert done.returncode == 0, done.stderr
    assert machine.hub.ranges[WEIGHTS] == f"bytes={2 * CHUNK}-"
    assert not fetched_before & set(machine.hub.fetched)
    assert files_of(machine.pairs / NAME / "target") == padded
    assert machine.listed()["unfinished_bytes"] == 0


def wait_for_part(machine: Machine, size: int) -> Path:
    """The weights as far as they have come, once so many bytes are on the disk."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for part in machine.pairs.glob(".*/target/openvino_model.bin.*.part"):
            if part.stat().st_size >= size:
                return part
        time.sleep(0.05)
    raise TimeoutError(size)


@pytest.mark.usefixtures("unmeasured")
def test_what_was_begun_can_be_removed(machine: Machine) -> None:
    machine.hub.served[WEIGHTS] = bytes(len(machine.hub.repositories[TARGET]["openvino_model.bin"]))
    assert machine.run("models", "pull", NAME).returncode == 2
    assert machine.listed()["unfinished_bytes"] > 0
    assert machine.run("models", "remove", NAME, "--yes").returncode == 0
    assert list(machine.pairs.iterdir()) == []


@pytest.mark.usefixtures("unmeasured")
def test_corrupted_bytes_are_found_out_and_fetched_again(machine: Machine) -> None:
    sound = machine.hub.repositories[TARGET]["openvino_model.bin"]
    machine.hub.served[WEIGHTS] = sound[:-9] + b"!" + sound[-8:]
    small = (DRAFT, "config.json")
    machine.hub.served[small] = machine.hub.repositories[DRAFT]["config.json"][:-1] + b" "
    for key in (WEIGHTS, small):
        refused = machine.run("models", "pull", NAME)
        assert refused.returncode == 2
        assert f"{key[1]} of {key[0]} arrived with other bytes" in refused.stderr
        assert machine.listed()["pulled"] is None
        del machine.hub.served[key]
    machine.hub.fetched.clear()
    assert machine.run("models", "pull", NAME).returncode == 0
    assert WEIGHTS not in machine.hub.fetched
    assert small in machine.hub.fetched


@pytest.mark.usefixtures("unmeasured")
def test_a_pull_of_named_commits_goes_on_at_them(machine: Machine) -> None:
    machine.hub.moved = {TARGET: MOVED, DRAFT: MOVED}
    small = (DRAFT, "config.json")
    machine.hub.served[small] = machine.hub.repositories[DRAFT]["config.json"][:-1] + b" "
    begun = machine.run("models", "pull", NAME, "--revision", SHA, "--draft-revision", SHA)
    assert begun.returncode == 2
    assert "arrived with other bytes" in begun.stderr
    other = machine.run("models", "pull", NAME, "--revision", MOVED)
    assert other.returncode == 2
    assert f"begun with its target at {SHA}" in other.stderr
    assert f"outrider models remove {NAME}" in other.stderr
    assert f"resume it with --revision {SHA}" in other.stderr
    other = machine.run("models", "pull", NAME, "--draft-revision", MOVED)
    assert f"resume it with --draft-revision {SHA}" in other.stderr
    machine.hub.served.clear()
    machine.hub.fetched.clear()
    done = machine.run("models", "pull", NAME)
    assert done.returncode == 0, done.stderr
    assert small in machine.hub.fetched
    assert WEIGHTS not in machine.hub.fetched
    described = json.loads((machine.pairs / NAME / "pair.json").read_text(encoding="utf-8"))
    assert {role: model["revision"] for role, model in described["models"].items()} == {"target": SHA, "draft": SHA}
    assert not list((machine.pairs / NAME).glob("begun*"))


def test_a_commit_that_the_hub_does_not_answer_with_is_refused(machine: Machine) -> None:
    machine.hub.moved = {TARGET: MOVED}
    machine.hub.stubborn = True
    for revision, words in {"main": "is not a commit", "f" * 40: "f" * 40, SHA: f"answered with {MOVED}"}.items():
        refused = machine.run("models", "pull", NAME, "--revision", revision)
        assert refused.returncode == 2
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr
    assert machine.hub.fetched == []
    without = machine.run("models", "pull", NAME, "--without-draft", "--draft-revision", SHA)
    assert "leave it out" in without.stderr


@pytest.mark.usefixtures("unmeasured")
def test_a_draft_of_another_vocabulary_is_refused_and_the_target_alone_only_taken_when_asked_for(
    machine: Machine,
) -> None:
    stranger = {**machine.hub.repositories[DRAFT]}
    for name in ("openvino_tokenizer.bin", "openvino_detokenizer.bin"):
        assert b"return" in stranger[name]
        stranger[name] = stranger[name].replace(b"return", b"retorn")
    machine.hub.repositories[DRAFT] = stranger
    refused = machine.run("models", "pull", NAME)
    assert refused.returncode == 2
    assert "vocabularies" in refused.stderr
    assert "--without-draft" in refused.stderr
    assert machine.listed()["pulled"] is None

    machine.hub.fetched.clear()
    done = machine.run("models", "pull", NAME, "--without-draft")
    assert done.returncode == 0, done.stderr
    assert machine.hub.fetched == []
    assert set(machine.listed()["pulled"]["models"]) == {"target"}
    assert not (machine.pairs / NAME / "draft").exists()


def test_a_repository_without_what_the_engine_needs_is_refused_before_anything_is_fetched(machine: Machine) -> None:
    files = {**machine.hub.repositories[DRAFT]}
    del files["openvino_detokenizer.xml"]
    machine.hub.repositories[DRAFT] = files
    refused = machine.run("models", "pull", NAME)
    assert refused.returncode == 2
    assert f"{DRAFT} on the hub lacks openvino_detokenizer.xml" in refused.stderr
    assert "--without-draft" in refused.stderr
    assert machine.hub.fetched == []


def test_a_model_that_does_not_run_here_is_kept_and_said(machine: Machine) -> None:
    """What fails may be this machine, so gigabytes are not thrown away."""
    graph = machine.hub.repositories[TARGET]["openvino_model.xml"]
    odd = graph.replace(b'"input_ids"', b'"pixel_values"')
    assert odd != graph
    machine.hub.repositories[TARGET] = {**machine.hub.repositories[TARGET], "openvino_model.xml": odd}
    pulled = machine.run("models", "pull", NAME)
    assert pulled.returncode == 2
    assert "The target cannot be measured" in pulled.stderr
    assert f"{NAME} was pulled to {machine.pairs / NAME}, but does not run here" in pulled.stderr
    assert f"outrider models remove {NAME}" in pulled.stderr
    assert "Traceback" not in pulled.stderr
    assert json.loads((machine.pairs / NAME / "pair.json").read_text())["models"]["target"]["properties"] == {}
    assert machine.run("models", "remove", NAME, "--yes").returncode == 0


def test_what_cannot_be_pulled_is_refused_in_one_line_with_the_reason(machine: Machine) -> None:
    def refusal(name: str, **settings: str) -> str:
        machine.settings = settings
        done = machine.run("models", "pull", name)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert not list(machine.pairs.glob("[!.]*"))
        return done.stderr.splitlines()[-1]

    assert "did you mean qwen3-8b" in refusal("qwen-8b")
    assert "`outrider models list`" in refusal("zzzzzz")
    assert "HF_HUB_OFFLINE is set" in refusal(NAME, HF_HUB_OFFLINE="1")
    assert "the hub cannot be reached" in refusal(NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert "not a model of the Hugging Face hub that you can read" in refusal("phi-3-mini")
    machine.hub.gated = frozenset({TARGET})
    assert "accept its licence" in refusal(NAME)


def test_a_pull_that_succeeded_says_so_though_the_machine_was_too_busy_to_measure(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(commands, "keep_private", lambda network: None)
    monkeypatch.setattr("outrider.models.pull.pull", lambda *args, **options: tmp_path)
    monkeypatch.setattr("outrider.app.cli.doctor.examine", lambda pair, console, **options: pair != tmp_path)
    done = CliRunner().invoke(commands.app, ["pull", NAME])
    assert done.exit_code == 0, done.output
    assert f"outrider chat --pair {NAME}" in done.output
