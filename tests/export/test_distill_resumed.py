"""`outrider distill`, interrupted: it goes on where it was, and keeps the answers for another training."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.export.checkpoint import Checkpoint, find_checkpoint
from outrider.export.distill import Distillation, Sample, answers, training
from outrider.export.distill import run as distillation
from outrider.export.distill.run import Plan
from outrider.export.distill.run import run as run_plan
from outrider.export.distill_command import main
from outrider.models.errors import NoRoom
from outrider.models.staging import Staging, staging_path
from outrider.pipelines.errors import InvalidOption

HOW = Distillation(batch_size=2, max_new_tokens=8)


def interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["answers", "training"])
def test_an_interrupted_distillation_ends_with_the_weights_of_an_uninterrupted_one(
    tall: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    plan = Plan(str(tall), "eagle3", prompts, HOW)
    run_plan(plan, tmp_path / "whole")
    with monkeypatch.context() as patch:
        if where == "answers":
            patch.setattr(distillation, "read_answers", interrupt)
        else:
            patch.setattr("outrider.export.distill.eagle3.Eagle3.save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
    monkeypatch.setattr("outrider.export.distill.answers.write_samples", None)  # nothing is answered again
    run_plan(plan, tmp_path / "cut")
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert one == other


@pytest.mark.parametrize("where", ["answers", "training", "publishing"])
def test_another_training_keeps_the_answers_and_ends_as_if_it_had_been_the_first(
    tall: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(answers, "STRETCH", 1)
    first = Plan(str(tall), "medusa", prompts, HOW)
    other = Plan(str(tall), "eagle3", prompts, replace(HOW, learning_rate=1e-2, epochs=1), draft_vocabulary=30)
    run_plan(other, tmp_path / "whole")
    write, seeds, told = answers.write_samples, list[int](), list[str]()

    def write_or_interrupt(target: Any, prompts: Sequence[Sequence[int]], how: Distillation) -> Iterator[Sample]:
        seeds.append(how.seed)
        if where == "answers" and seeds == [0, 1]:
            raise KeyboardInterrupt
        return write(target, prompts, how)

    monkeypatch.setattr(answers, "write_samples", write_or_interrupt)
    with monkeypatch.context() as patch:
        if where == "training":
            patch.setattr("outrider.export.distill.medusa.Medusa.save", interrupt)
        elif where == "publishing":
            patch.setattr(Staging, "publish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_plan(first, tmp_path / "cut")
    run_plan(other, tmp_path / "cut", told.append)
    assert seeds == ([0, 1, 1, 2] if where == "answers" else [0, 1, 2])
    assert told[1].startswith("Keeping the answers, and training anew with another kind, draft_vocabulary, epochs, ")
    assert ("Answering 6 prompts" in told) == (where == "answers")
    for names in zip(*(sorted((tmp_path / out).iterdir()) for out in ("whole", "cut")), strict=True):
        assert len({name.name for name in names}) == 1
        assert names[0].name == "distillation.json" or len({name.read_bytes() for name in names}) == 1


def test_all_answers_are_kept_for_batches_of_another_size_and_some_are_not(
    tall: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, larger = (Plan(str(tall), "medusa", prompts, replace(HOW, batch_size=size)) for size in (2, 3))
    for made in ("write_answers", "distil_head"):
        with monkeypatch.context() as patch:
            patch.setattr(distillation, made, interrupt)
            with pytest.raises(KeyboardInterrupt):
                run_plan(plan, tmp_path / made)
    with pytest.raises(InvalidOption, match=r"\(batch_size was 2 and is 3\): repeat"):
        run_plan(larger, tmp_path / "write_answers")
    monkeypatch.setattr(answers, "write_samples", None)  # nothing is answered again
    record = json.loads((run_plan(larger, tmp_path / "distil_head") / "distillation.json").read_text())
    assert (record["batch_size"], len(record["losses"])) == (3, 2 * 2)


def test_answers_to_other_settings_are_not_gone_on_with(
    tall: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "write_answers", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_plan(Plan(str(tall), "eagle3", prompts, HOW), tmp_path / "head")
    other = Plan(str(tall), "eagle3", prompts, replace(HOW, seed=3, temperatures=(0.5,)), taps=(0, 1, 2))
    with pytest.raises(InvalidOption, match=r"\(temperatures was \[0.0, 1.0\] and is \[0.5\], seed was 0 and is 3\)"):
        run_plan(other, tmp_path / "head")
    template = shutil.copytree(tall, tmp_path / "template")
    (template / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    with pytest.raises(InvalidOption, match=rf"the target, with other content, was {tall} and is {template}\): repeat"):
        run_plan(Plan(str(template), "eagle3", prompts, HOW), tmp_path / "head")
    lines = prompts.with_name("others.jsonl")
    lines.write_text('{"prompt": "a"}', encoding="utf-8")
    with pytest.raises(InvalidOption, match=rf"the prompts, with other content, was {prompts} and is {lines}\):"):
        run_plan(Plan(str(tall), "eagle3", lines, HOW), tmp_path / "head")
    shutil.rmtree(staging_path(tmp_path / "head"))
    with pytest.raises(KeyboardInterrupt):
        run_plan(other, tmp_path / "head")


def test_a_distillation_goes_on_when_the_repository_of_its_target_has_a_new_commit_with_the_same_weights(
    tall: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, found = Plan("org/model", "eagle3", prompts, HOW), find_checkpoint(str(tall), False, print)
    commit, commits = "0" * 40, []

    def find(source: str, remote_code: bool, announce: object) -> Checkpoint:
        commits.append(commit)
        return replace(found, source=source, revision=commit)

    monkeypatch.setattr(distillation, "find_checkpoint", find)
    with monkeypatch.context() as patch:
        patch.setattr(distillation, "read_answers", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan, tmp_path / "head")
    commit = "f" * 40
    monkeypatch.setattr("outrider.export.distill.answers.write_samples", None)  # nothing is answered again
    record = json.loads((run_plan(plan, tmp_path / "head") / "distillation.json").read_text())
    assert commits == ["0" * 40, "f" * 40]
    assert (record["target"], record["target_revision"], record["target_digest"]) == (
        "org/model", "f" * 40, found.digest(),
    )  # fmt: skip


def test_an_interruption_says_how_to_continue(
    tall: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distillation, "run", interrupt)
    with pytest.raises(SystemExit) as ended:
        main(["--target", str(tall), "--kind", "medusa", "--prompts", str(prompts), "--out", str(tmp_path / "head")])
    assert ended.value.code == 130
    assert capsys.readouterr().err.endswith("Interrupted. The same command continues with what was saved.\n")


def test_a_mark_that_was_cut_off_is_written_again(
    tall: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, plan, write = tmp_path / "head", Plan(str(tall), "medusa", prompts, HOW), Path.write_text

    def cut(path: Path, text: str, **options: str) -> int:
        if path.parent.name == "work":
            write(path, text[:5], **options)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", cut)
        with pytest.raises(NoRoom):
            run_plan(plan, out)
    assert run_plan(plan, out) == out
