"""`outrider bench` as a person runs it, on the embedded pair."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from outrider.app import progress
from outrider.app.bench import bench as command
from outrider.app.cli.main import app as outrider
from outrider.pipelines import LLMPipeline, OutriderError
from outrider.pipelines.speculation import runtime
from outrider.pipelines.speculation.draft_cost import DraftCost
from tests.drafting_pairs import CHECKPOINTS, WAYS, drafter_of, mode_of
from tests.pipelines.serving import COST

from ..commands import run

RUNNER = CliRunner()
HEAD, TARGET = (str(CHECKPOINTS.parent / "pair" / role) for role in ("head", "target"))
QUICK = ["--prompts-per-family", "1", "--max-new-tokens", "12", "--seed", "1"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "own.jsonl"
    lines = [
        {"prompt": "Repeat this function:\ndef area(width, height):\n    return width * height"},
        {"prompts": ["Complete this function:\ndef a(b):", "Hi"], "family": "two", "options": {"temperature": 0.0}},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.mark.slow
def test_every_mode_is_measured_on_every_shipped_family(embedded_pair: Path) -> None:
    done = RUNNER.invoke(outrider, ["bench", str(embedded_pair), *QUICK, "--json", "--mode", "auto"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert {entry["family"] for entry in report["entries"]} == set(command.FAMILIES)
    assert [entry["mode"] for entry in report["entries"]] == ["off", "auto"] * len(command.FAMILIES)
    for entry in report["entries"]:
        assert entry["differing"] == 0
        assert entry["tokens_per_s"]["median"] > 0
        if not entry["family"].startswith("batch"):
            assert entry["best_share"]["median"] > 0


@pytest.mark.slow
def test_own_prompts_give_a_table_and_a_page(prompts: Path, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    done = RUNNER.invoke(outrider, ["bench", "--prompts", str(prompts), *QUICK, "--html", str(html)])
    assert done.exit_code == 0, done.output
    assert re.search(r"^own, 1 prompt *$", done.stdout, re.MULTILINE)
    assert "two, 2 prompts" in done.stdout
    assert "Every mode gave the tokens of plain decoding." in done.stdout
    for mode in ("off", "lookup", "suffix", "recycling", "draft", "head", "chained", "auto"):
        assert mode in done.stdout
    assert html.read_text(encoding="utf-8").count("<svg") == 3


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_whatever_drafts_is_measured_and_told_by_its_name(
    way: str, drafting_pairs: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = replace(COST, drafts={drafter_of(way): DraftCost(0.3, 0.01)})
    monkeypatch.setattr(runtime, "measured_cost", lambda path, measured, anew: cost)  # drafts pay on any machine
    monkeypatch.setattr(runtime, "PREPARED_S", 0.0)
    chosen = ["--mode", mode_of(way), "--family", "own", "--exact", "--json"]
    done = RUNNER.invoke(outrider, ["bench", str(drafting_pairs / way), "--prompts", str(prompts), *QUICK, *chosen])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    plain, drafted = report["entries"]
    assert (plain["mode"], drafted["mode"], drafted["differing"]) == ("off", mode_of(way), 0)
    assert (plain["by_depth"], {*drafted["by_depth"]}) == ({}, {drafter_of(way)})
    assert drafted["best_share"]["median"] > 0
    assert report["draft_ms"].keys() == {drafter_of(way)}


@pytest.mark.slow
def test_several_heads_of_a_target_are_compared(
    embedded_pair: Path, drafting_pairs: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = replace(COST, drafts={"head": DraftCost(0.3, 0.01), "draft_model": DraftCost(0.3, 0.01)})
    monkeypatch.setattr(runtime, "measured_cost", lambda path, measured, anew: cost)  # drafts pay on any machine
    monkeypatch.setattr(runtime, "PREPARED_S", 0.0)
    heads = [str(drafting_pairs / way / "head") for way in ("mtp", "medusa")]
    chosen = ["--mode", "suffix", "--mode", "head", "--family", "own", "--exact", "--json"]
    chosen += ["--html", str(tmp_path / "page.html"), *(word for head in heads for word in ("--head", head))]
    done = RUNNER.invoke(outrider, ["bench", str(embedded_pair), "--prompts", str(prompts), *QUICK, *chosen])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [entry["mode"] for entry in report["entries"]] == ["off", "suffix", "head 1", "head 2"]
    assert [{*entry["by_depth"]} for entry in report["entries"][2:]] == [{"head 1"}, {"head 2"}]
    assert not any(entry["differing"] for entry in report["entries"])
    assert report["draft_ms"].keys() == {"draft_model", "head 1", "head 2"}
    models = report["about"]["models"]
    assert [models[f"head {number}"] for number in (1, 2)] == [{"from": head} for head in heads]
    assert "a token of head 2" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_mode_that_writes_other_tokens_fails_loudly(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that breaks the first promise must not pass unnoticed."""
    generate = LLMPipeline.generate

    def broken(self: LLMPipeline, inputs: object, **options: object) -> object:
        if options["mode"] == "lookup":
            options["max_new_tokens"] = 5
        return generate(self, inputs, **options)

    monkeypatch.setattr(LLMPipeline, "generate", broken)
    chosen = ["--mode", "lookup", "--family", "own", "--exact"]
    done = RUNNER.invoke(outrider, ["bench", "--prompts", str(prompts), *QUICK, *chosen])
    assert done.exit_code == 1
    assert "DIFFERENT TEXT: own, mode lookup: 1 of 1 prompts" in done.stdout
    assert "1 answers differ from plain decoding" in done.stderr


def interrupt(monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> None:
    """Interrupt the `at`-th call of a method of LLMPipeline, as Ctrl-C does."""
    calls, usual = itertools.count(1), getattr(LLMPipeline, name)

    def interrupted(self: LLMPipeline, *arguments: object, **options: object) -> object:
        if next(calls) == at:
            raise KeyboardInterrupt
        return usual(self, *arguments, **options)

    monkeypatch.setattr(LLMPipeline, name, interrupted)


def test_an_interrupted_benchmark_shows_what_was_measured(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(monkeypatch, "generate", at=4)
    done = RUNNER.invoke(outrider, ["bench", "--prompts", str(prompts), *QUICK, "--mode", "lookup"])
    assert done.exit_code == 130
    assert re.search(r"^own, 1 prompt *$", done.stdout, re.MULTILINE)
    assert "two" not in done.stdout
    assert "Interrupted after 1 of 2 prompts or batches." in done.stdout
    assert "Interrupted" in done.stderr


@pytest.mark.slow
def test_a_benchmark_that_is_interrupted_while_it_loads_another_head_shows_the_first(
    prompts: Path, drafting_pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, "warm_up", at=2)
    head = str(drafting_pairs / "medusa" / "head")
    chosen = ["--family", "own", "--mode", "head", "--head", head, "--head", head, "--json"]
    done = RUNNER.invoke(outrider, ["bench", "--prompts", str(prompts), *QUICK, *chosen])
    assert done.exit_code == 130, done.output
    report = json.loads(done.stdout)
    assert report["interrupted"]
    assert [entry["mode"] for entry in report["entries"]] == ["off", "head 1"]


def test_a_benchmark_that_is_interrupted_at_once_says_that_there_is_nothing_to_show(
    prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, "generate", at=2)
    done = run("bench", "--prompts", str(prompts), *QUICK, "--mode", "lookup")
    assert (done.returncode, done.stdout) == (130, "")
    assert "nothing to report" in done.stderr


def test_a_benchmark_into_a_file_tells_now_and_then_how_far_it_is(
    prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "RARELY_S", 0.0)
    done = run("bench", "--prompts", str(prompts), *QUICK, "--mode", "lookup", "--family", "own")
    assert re.fullmatch(r"(own, (off|lookup) \(prompt 1 of 1\)\n){2}", done.stderr)


@pytest.mark.parametrize(
    ("line", "arguments", "words"),
    [
        ({"prompt": "hello " * 5000}, [], "The prompt has 1"),
        ({"prompt": "a", "options": {"min_new_tokens": 200}}, [], "min_new_tokens=200 is more than max_new_tokens=12"),
        ({"messages": [{"role": "user", "content": ""}]}, [], "prompt is empty"),
        ({"prompt": "a", "options": {"structured_output_config": {"regex": "("}}}, [], "unclosed group"),
        ({"prompt": "a", "options": {"typical_delta": 0.2}}, [], "has no effect with acceptance='exact'"),
        ({"prompt": "a", "options": {"typical_delta": 0.2}}, ["--acceptance", "threshold"], "set acceptance='typical'"),
    ],
    ids=["too long", "too short", "empty", "no form", "of no rule", "of another rule"],
)  # fmt: skip
def test_a_prompt_that_would_be_refused_is_named_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: object, arguments: list[str], words: str
) -> None:
    monkeypatch.setattr(command, "run", lambda *given: pytest.fail("it is measured"))
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, ({"prompt": "good", "family": "good"}, line))))
    with pytest.raises(OutriderError, match=words) as raised:
        RUNNER.invoke(outrider, ["bench", "--prompts", str(path), *QUICK, *arguments], catch_exceptions=False)
    assert str(raised.value).startswith(f"{path}, line 2: ")


def test_the_parameters_of_a_rule_apply_where_the_rule_does(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"prompt": "Hi", "family": "a [b] [/c]", "options": {"typical_delta": 0.2}}))
    chosen = ["--acceptance", "typical", "--mode", "lookup"]
    done = RUNNER.invoke(outrider, ["bench", "--prompts", str(path), *QUICK, *chosen])
    assert done.exit_code == 0, done.output
    assert re.search(r"^a \[b\] \[/c\], 1 prompt *$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--family", "poetry"], "'poetry' does not exist: choose edit"),
        (["--mode", "fast"], "'fast' is not one that this pair can do: choose off"),
        (["--head", HEAD, "--head", "no/such"], "no/such is not an exported head"),
        (["--head", HEAD, "--head", TARGET], "target is not a head that is known"),
        (["--head", HEAD, "--head", HEAD, "--mode", "lookup"], "No head drafts in mode lookup: give one --head"),
        (["--prompts-per-family", "0"], "prompts_per_family=0"),
        (["--prompts", "no/such.jsonl"], "cannot be read"),
        (["--html", "no/such/folder/page.html"], "--html no/such/folder/page.html cannot be written"),
        (["--html", "."], "--html . cannot be written: give a file"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setattr(command, "run", lambda *given: pytest.fail("it is measured"))
    with pytest.raises(OutriderError, match=words):
        RUNNER.invoke(outrider, ["bench", *arguments], catch_exceptions=False)


def test_a_page_without_the_library_that_draws_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(command.MissingPlots, match=r"pip install 'outrider\[bench\]'"):
        RUNNER.invoke(outrider, ["bench", "--html", str(tmp_path / "page.html")], catch_exceptions=False)


def test_a_machine_whose_cost_cannot_be_measured_is_said() -> None:
    notes, shares = command._best(SimpleNamespace(speculation=SimpleNamespace(cost=None)), [])
    assert shares == {}
    assert "best possible schedule is not known" in notes[0]
