"""The recipe goes on where it was interrupted, and takes no outcome of another run for its own."""

from __future__ import annotations

import inspect
import json
import math
import random
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from outrider.export.distill import Distillation, Sample, Unrolling, answers
from outrider.export.distill.kinds import SharingKind
from outrider.models.pyscout import __main__ as command
from outrider.models.pyscout import corpus, depth, evaluate, recipe, sizes, tokenizer, train
from outrider.pipelines.errors import InvalidOption

FUNCTIONS = [corpus.Function("python", s) for m in (textwrap, random) for s in corpus.extract(inspect.getsource(m))]
PROMPTS = 20
TINY = sizes.Shape(width=32, layers=1, heads=2, key_value_heads=1, head=16, feed_forward=32)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> recipe.Run:
    """A run whose data, tokenizer and target are there, with stretches of eight prompts."""
    how = Distillation(batch_size=2)
    monkeypatch.setitem(sizes.SIZES, "small", replace(sizes.SIZES["small"], distillation=how))
    work = tmp_path / "work"
    run = recipe.Run(work, tmp_path / "out", "small", None, math.inf, math.inf, 4, 4, PROMPTS)
    run.data.mkdir(parents=True)
    (run.data / "train.jsonl").write_text("".join(json.dumps(asdict(f)) + "\n" for f in FUNCTIONS))
    words = tokenizer.train([f.source for f in FUNCTIONS], vocabulary=tokenizer.VOCABULARY)
    words.save_pretrained(work / "tokenizer")
    train.save_checkpoint(TINY.build(), words, work / "target" / "checkpoint")
    return run


def test_answers_are_written_once_each_whatever_interrupts(run: recipe.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    interrupted_at: int | None = 1

    def write_samples(target: object, prompts: Sequence[list[int]], how: Distillation) -> Iterator[Sample]:
        asked.append(how.seed)
        for prompt in prompts:
            yield Sample([*prompt, how.seed], len(prompt))
            if how.seed == interrupted_at:
                raise KeyboardInterrupt

    monkeypatch.setattr(answers, "write_samples", write_samples)
    with pytest.raises(KeyboardInterrupt):
        recipe.answer_prompts(run)
    assert not (run.work / "answers.jsonl").exists()
    interrupted_at = None
    recipe.answer_prompts(run)
    recipe.answer_prompts(run)
    assert asked == [0, 1, 1, 2]
    expected = [
        [[*prompt, number], len(prompt)]
        for number, prompts in enumerate(recipe.draft_prompts(run, PROMPTS))
        for prompt in prompts
    ]
    assert len(expected) == PROMPTS
    assert list(map(json.loads, (run.work / "answers.jsonl").read_text().splitlines())) == expected


def test_a_checkpoint_gets_its_name_when_it_is_complete(run: recipe.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = tokenizer.load(run.work / "tokenizer")
    folder = run.work / "draft" / "checkpoint"

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(words, "save_pretrained", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train.save_checkpoint(TINY.build(), words, folder)
    assert not folder.exists()
    train.save_checkpoint(TINY.build(), words, folder)
    assert {"model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}


def test_the_head_learns_from_the_answers_and_goes_on_where_it_was(
    run: recipe.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(run.work / "target")
    train.save_checkpoint(
        replace(TINY, layers=3).build(), tokenizer.load(run.work / "tokenizer"), run.work / "target/checkpoint"
    )
    how, unrolling = Distillation(epochs=1, batch_size=2), Unrolling(steps=3, places=5)
    size = replace(sizes.SIZES["small"], taps=(0, 1, 2), head=how, head_unrolling=unrolling, head_feed_forward=24)
    monkeypatch.setitem(sizes.SIZES, "small", size)
    monkeypatch.setattr(recipe.head_copying, "initialize", lambda head, target, samples: None)  # for wider ones
    lines = [json.dumps([list(range(5, 12 + n)), 4]) for n in range(6)]
    (run.work / "answers.jsonl").write_text("\n".join(lines))

    def interrupt(head: object, folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "save_head", interrupt)
        with pytest.raises(KeyboardInterrupt):
            recipe.train_head(run)
    assert not (run.work / "head" / "checkpoint").exists()
    recipe.train_head(run)
    recipe.train_head(run)
    budget = json.loads((run.work / "head" / "budget.json").read_text())
    assert (budget["answers"], budget["tokens"], budget["epochs"]) == (6, 33, 1)
    assert (budget["steps"], budget["places"]) == (3, 5)
    config = json.loads((run.work / "head" / "checkpoint" / "config.json").read_text())
    assert config["eagle_taps"] == [0, 1, 2]
    assert config["intermediate_size"] == 24


def test_heads_of_all_other_kinds_learn_and_are_measured(run: recipe.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(run.work / "target")
    train.save_checkpoint(
        replace(TINY, layers=3).build(), tokenizer.load(run.work / "tokenizer"), run.work / "target/checkpoint"
    )
    monkeypatch.setattr(recipe.mtp_copying, "initialize", lambda head, target, samples: None)  # for wider ones
    kinds: list[SharingKind] = ["medusa", "hydra", "mtp", "exit"]
    how = dict.fromkeys(kinds, Distillation(epochs=1, batch_size=2))
    monkeypatch.setitem(sizes.SIZES, "small", replace(sizes.SIZES["small"], other_heads=how))
    monkeypatch.setattr(evaluate, "ACCEPTANCE_TOKENS", 12)
    monkeypatch.setattr(depth, "ACCEPTANCE_TOKENS", 12)
    (run.work / "answers.jsonl").write_text("\n".join(json.dumps([list(range(5, 12 + n)), 4]) for n in range(6)))
    shutil.copy(run.data / "train.jsonl", run.data / "held_out.jsonl")
    recipe.train_other_heads(run)
    before = {kind: (run.work / "heads" / kind / "budget.json").stat().st_mtime_ns for kind in kinds}
    recipe.train_other_heads(run)
    assert before == {kind: (run.work / "heads" / kind / "budget.json").stat().st_mtime_ns for kind in kinds}
    recipe.measure_other_heads(replace(run, acceptance_cases=2))
    found = json.loads((run.work / "heads.json").read_text())
    lengths = {kind: len(found["acceptance"]["repeat"]["temperature 0"][kind]["by_depth"]) for kind in kinds}
    assert lengths == {"medusa": 3, "hydra": 3, "mtp": 5, "exit": 5}
    # A third of three heads of one block, or of fc and two blocks, and a projection to 4,096 tokens.
    target = LlamaForCausalLM.from_pretrained(run.work / "target/checkpoint").num_parameters()
    block, projection = 32 * 32 + 32, 4096 * 32
    reads = {"medusa": block, "hydra": (2 + 3 + 4) * 32 * 32 / 3 + 2 * block}
    for kind, own in reads.items():
        assert found["heads"][kind]["share_of_pass"] == pytest.approx((own + projection) / target)


def test_a_work_folder_of_another_size_is_refused(run: recipe.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(run: recipe.Run) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe, "make_data", stop)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            recipe.run_all(run)
    with pytest.raises(InvalidOption, match=r"holds a run of size small, not base: name another folder"):
        recipe.run_all(replace(run, size="base"))


@pytest.mark.parametrize("option", [("--prompts", "0"), ("--minutes", "-1"), ("--cases", "none"), ("--size", "huge")])
def test_the_command_refuses_what_cannot_work(
    option: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pyscout", *option, "--work", str(tmp_path / "work")])
    with pytest.raises(SystemExit) as ended:
        command.run()
    assert ended.value.code == 2
    assert f"argument {option[0]}" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()
