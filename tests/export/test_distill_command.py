"""`outrider distill`: makes a checkpoint, goes on where it was interrupted, and says what is wrong."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.export.checkpoint import find_checkpoint
from outrider.export.command import main as export
from outrider.export.distill import Distillation, Sample
from outrider.export.distill import run as distillation
from outrider.export.distill.eagle3 import draft_ids, load_head
from outrider.export.distill.run import Plan
from outrider.export.distill.run import run as run_plan
from outrider.export.distill_command import main
from outrider.export.errors import NotADecoder
from outrider.models.errors import NoSuchModel, OutputExists
from outrider.models.staging import staging_path
from outrider.pipelines import LLMPipeline
from outrider.pipelines.errors import (
    InvalidOption,
    UnsupportedModel,
    VocabularyMismatch,
)
from outrider.pipelines.speculation.drafters.head import Head
from outrider.pipelines.speculation.drafters.self_speculative import EXIT

from .conftest import make_llama, make_tokenizer, save, save_renamed

HOW = Distillation(batch_size=2, max_new_tokens=8)


def distill(*arguments: object) -> None:
    """Run the command to its end; errors are raised."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--batch-size", "2", "--max-new-tokens", "8"])
    assert ended.value.code == 0


def assert_drafts(target: Path, head: Path, out: Path, mode: str, drafter: str) -> None:
    """A head that was made is exported with its target, and drafts for it without changing its text."""
    weights = ["--target-weights", "fp16", "--head-weights", "fp16"]  # which take no time to compress
    with pytest.raises(SystemExit) as ended:
        export(["--target", str(target), "--head", str(head), "--out", str(out), *weights])
    assert ended.value.code == 0
    pipeline = LLMPipeline(out, cache_tokens=1024, exact=True)
    options: dict[str, Any] = {"max_new_tokens": 16, "ignore_eos": True, "num_assistant_tokens": 3}
    for sampling in ({}, {"do_sample": True, "rng_seed": 3}):
        plain, drafted = (
            pipeline.generate("def area1(width", mode=each, **options, **sampling).generations[0]
            for each in ("off", mode)
        )
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.drafted_by == {drafter: drafted.stats.drafted}
        assert drafted.stats.drafted > 0


@pytest.mark.slow
def test_a_head_is_made_for_a_target_and_drafts_for_it(
    tall: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "head"
    distill("--target", tall, "--kind", "eagle3", "--prompts", prompts, "--out", out, "--draft-vocabulary", 30)
    assert capsys.readouterr().out.startswith(f"Made {out}. ")
    assert sorted(file.name for file in out.iterdir()) == ["config.json", "distillation.json", "model.safetensors"]
    assert not staging_path(out).exists()
    record = json.loads((out / "distillation.json").read_text())
    assert (record["kind"], record["answers"], record["target"]) == ("eagle3", 6, str(tall))
    assert len(record["losses"]) == 2 * 3
    head = load_head(out, AutoModelForCausalLM.from_pretrained(tall, dtype=torch.float32))
    assert len(draft_ids(head)) <= 30
    assert_drafts(tall, out, tmp_path / "pair", "head", Head.name)


def test_a_head_for_int4_may_be_narrower_and_learn_from_fewer_places(tall: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    options = ["--feed-forward", 48, "--draft-vocabulary", 30, "--int4-group-size", 32, "--places", 2]
    distill("--target", tall, "--kind", "eagle3", "--prompts", prompts, "--out", out, *options)
    record = json.loads((out / "distillation.json").read_text())
    assert (record["feed_forward"], record["group_size"], record["unrolling"]["places"]) == (48, 32, 2)
    head = load_head(out, AutoModelForCausalLM.from_pretrained(tall, dtype=torch.float32))
    assert head.model.midlayer.mlp.up_proj.weight.shape == (48, 64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options", "file", "facts"),
    [
        ("medusa", ["--heads", 2], "medusa_lm_head.safetensors", {"medusa_num_heads": 2, "medusa_num_layers": 1}),
        ("hydra", [], "hydra_lm_head.safetensors", {"hydra_num_heads": 3, "hydra_num_layers": 2}),
        ("mtp", ["--unrolled-steps", 2], "model.safetensors", {"num_key_value_heads": 1, "intermediate_size": 128}),
        ("exit", ["--exit-layer", 2], "model.safetensors", {"exit_layer": 2, "intermediate_size": 128}),
    ],
)
def test_a_head_of_each_kind_is_made_for_a_target_and_drafts_for_it(
    tall: Path, prompts: Path, tmp_path: Path, kind: str, options: list[object], file: str, facts: dict[str, int]
) -> None:
    out = tmp_path / "head"
    distill("--target", tall, "--kind", kind, "--prompts", prompts, "--out", out, *options)
    assert sorted(each.name for each in out.iterdir()) == ["config.json", "distillation.json", file]
    config = json.loads((out / "config.json").read_text())
    sizes = {"hidden_size": 64, "vocab_size": 300}
    assert {name: config[name] for name in (*facts, *sizes)} == facts | sizes
    record = json.loads((out / "distillation.json").read_text())
    assert (record["kind"], record["answers"], len(record["losses"])) == (kind, 6, 2 * 3)
    assert find_checkpoint(str(out), False, print).head_kind == kind
    assert_drafts(tall, out, tmp_path / "pair", *(("exit", EXIT) if kind == "exit" else ("head", Head.name)))


def test_a_draft_model_is_made_for_a_target(target: Path, draft: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    distill("--target", target, "--kind", "draft", "--draft", draft, "--prompts", prompts, "--out", out)
    before, after = (AutoModelForCausalLM.from_pretrained(folder) for folder in (draft, out))
    assert after.dtype == torch.float16
    assert any(not torch.equal(one, other) for one, other in zip(before.parameters(), after.parameters(), strict=True))
    assert (out / "tokenizer.json").read_bytes() == (draft / "tokenizer.json").read_bytes()


def test_a_draft_model_keeps_defaults_that_transformers_does_not_save(
    target: Path, draft: Path, prompts: Path, tmp_path: Path
) -> None:
    start, stored = shutil.copytree(draft, tmp_path / "start"), {"eos_token_id": [0, 7], "temperature": 0.6}
    (start / "generation_config.json").write_text(json.dumps(stored), encoding="utf-8")
    out = run_plan(Plan(str(target), "draft", prompts, HOW, draft=str(start)), tmp_path / "draft")
    assert json.loads((out / "generation_config.json").read_text(encoding="utf-8")).items() >= stored.items()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kind", "draft"], "--kind draft requires --draft"),
        (["--kind", "draft", "--draft", "x", "--taps", "0,1,2"], "--taps is for --kind eagle3, and --kind is draft"),
        (["--kind", "draft", "--draft", "x", "--unrolled-steps", "2"], "--unrolled-steps is for --kind eagle3 and mtp"),
        (["--kind", "eagle3", "--draft", "x"], "--draft x is for --kind draft"),
        (["--kind", "eagle3", "--taps", "0,one"], "--taps 0,one is not a list of layers"),
        (["--kind", "eagle3", "--taps", "0,1"], r"three ascending layers of 0\.\.2, not \(0, 1\)"),
        (["--kind", "eagle3", "--taps", "0,1,9"], r"three ascending layers of 0\.\.2"),
        (["--kind", "eagle3", "--draft-vocabulary", "0"], "--draft-vocabulary must be at least 1"),
        (["--kind", "eagle3", "--draft-vocabulary", "301"], "--draft-vocabulary 301 is more than the 300 ids"),
        (["--kind", "medusa", "--unrolled-steps", "2"], "--unrolled-steps is for --kind eagle3 and mtp"),
        (["--kind", "mtp", "--heads", "2"], "--heads is for --kind medusa and hydra"),
        (["--kind", "hydra", "--heads", "0"], "--heads must be at least 1"),
        (["--kind", "mtp", "--feed-forward", "8"], "--feed-forward is for --kind eagle3"),
        (["--kind", "eagle3", "--feed-forward", "0"], "--feed-forward must be at least 1"),
        (["--kind", "draft", "--draft", "x", "--places", "2"], "--places is for --kind eagle3 and medusa and hydra"),
        (["--kind", "exit", "--places", "0"], "places must be at least 1, not 0"),
        (["--kind", "exit", "--int4-group-size", "0"], "group_size must be positive, or -1"),
        (["--kind", "medusa", "--exit-layer", "2"], "--exit-layer is for --kind exit"),
        (["--kind", "exit", "--exit-layer", "3"], "an exit comes after 1 to 2 of 3 layers, not 3"),
        (["--kind", "eagle3", "--unrolled-steps", "0"], "steps must be at least 1, not 0"),
        (["--kind", "eagle3", "--temperature", "-1"], "temperatures must be one or more numbers from 0 up"),
        (["--kind", "eagle3", "--temperature", "nan"], "temperatures must be one or more numbers from 0 up"),
        (["--kind", "eagle3", "--temperature", "inf"], "temperatures must be one or more numbers from 0 up"),
        (["--kind", "eagle3", "--learning-rate", "0"], "learning_rate must be above 0"),
        (["--kind", "eagle3", "--max-new-tokens", "1"], "--max-new-tokens must be at least 2"),
        (
            ["--kind", "eagle3", "--max-new-tokens", "512"],
            "--max-new-tokens 512 leaves no room for a prompt in the 512",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(
    tall: Path, prompts: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        main(["--target", str(tall), "--prompts", str(prompts), "--out", str(tmp_path / "out"), *options])
    assert list(tmp_path.iterdir()) == [prompts]


def test_answers_that_end_at_once_are_nothing_to_learn_from(
    tall: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "read_answers", lambda path: [Sample([3, 4, 0], 2)])
    with pytest.raises(InvalidOption, match="ended all its answers at once: give other prompts"):
        run_plan(Plan(str(tall), "eagle3", prompts, HOW), tmp_path / "head")


def test_a_draft_with_logits_for_other_ids_is_refused(tall: Path, prompts: Path, tmp_path: Path) -> None:
    wider = make_llama(64, 1, seed=2)
    wider.resize_token_embeddings(320)
    save(tmp_path / "wider", wider, make_tokenizer())
    with pytest.raises(VocabularyMismatch, match=r"has logits for 300 ids and .* for 320"):
        run_plan(Plan(str(tall), "draft", prompts, HOW, draft=str(tmp_path / "wider")), tmp_path / "draft")


def test_a_target_with_too_few_layers_for_a_head_is_refused(target: Path, prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="a head reads three layers, and the target has 2"):
        run_plan(Plan(str(target), "eagle3", prompts, HOW), tmp_path / "head")


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_head_that_is_given_as_a_model_is_refused(tall: Path, prompts: Path, tmp_path: Path, role: str) -> None:
    head = run_plan(Plan(str(tall), "medusa", prompts, HOW), tmp_path / "head")
    given = {"target": str(tall), "draft": str(tall), role: str(head)}
    with pytest.raises(NotADecoder, match=rf"head is a head, which does not write text: give a model as --{role}"):
        run_plan(Plan(given["target"], "draft", prompts, HOW, draft=given["draft"]), tmp_path / "draft")


def test_a_target_that_cannot_be_loaded_is_refused(tall: Path, prompts: Path, tmp_path: Path) -> None:
    target = shutil.copytree(tall, tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "hidden_act": "nonsense"}))
    with pytest.raises(UnsupportedModel, match="transformers cannot load"):
        run_plan(Plan(str(target), "eagle3", prompts, HOW), tmp_path / "head")


def test_checkpoints_that_lack_weights_are_refused(tall: Path, prompts: Path, tmp_path: Path) -> None:
    lacking = save_renamed(tall, tmp_path / "lacking", lambda name: name.replace(".2.", ".9."))
    with pytest.raises(NoSuchModel, match=r"lacking lacks 9 of its model's weights \(model\.layers\.2\.input_"):
        run_plan(Plan(str(lacking), "medusa", prompts, HOW), tmp_path / "head")
    with pytest.raises(NoSuchModel, match="lacking lacks 9 of"):
        run_plan(Plan(str(tall), "draft", prompts, HOW, draft=str(lacking)), tmp_path / "draft")


def test_a_draft_of_another_vocabulary_is_refused(target: Path, stranger: Path, prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(VocabularyMismatch):
        run_plan(Plan(str(target), "draft", prompts, HOW, draft=str(stranger)), tmp_path / "draft")


def test_a_folder_that_exists_is_refused(tall: Path, prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputExists, match="exists: choose another"):
        run_plan(Plan(str(tall), "eagle3", prompts, HOW), tmp_path)


def test_a_tilde_in_out_or_prompts_is_the_home_folder(tall: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path] = []
    monkeypatch.setattr(distillation, "run", lambda plan, out, announce: found.extend([out, plan.prompts]))
    distill("--target", tall, "--kind", "medusa", "--prompts=~/my.jsonl", "--out", "~/heads/my")
    assert found == [Path.home() / "heads" / "my", Path.home() / "my.jsonl"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], []),
        (["--int4-group-size", "32"], ["--draft-weights", "int4", "--group-size", "32"]),
        (["--trust-remote-code"], ["--trust-remote-code"]),
    ],
)
def test_the_command_that_is_told_at_the_end_exports_what_was_made_as_it_was_trained(
    options: list[str], told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(distillation, "run", lambda plan, out, announce: out)
    distill("--target", "org/model", "--kind", "medusa", "--prompts", "p", "--out", "my head", *options)
    command = shlex.split(capsys.readouterr().out.partition(": ")[2])
    assert command == ["outrider", "export", "--target", "org/model", "--draft", "my head", *told, "--out", "PAIR"]


def test_a_target_or_prompts_that_are_not_there_are_refused(prompts: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchModel):
        run_plan(Plan(str(tmp_path / "none"), "eagle3", prompts, HOW), tmp_path / "head")
    with pytest.raises(InvalidOption, match=r"none\.jsonl is not a file"):  # before the target is downloaded
        run_plan(Plan(str(tmp_path / "none"), "eagle3", tmp_path / "none.jsonl", HOW), tmp_path / "head")
