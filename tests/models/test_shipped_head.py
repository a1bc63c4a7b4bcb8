"""The heads that come with the embedded target are small, of the published layouts, and often right."""

from __future__ import annotations

import inspect
import json
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from outrider.export.checkpoint import find_checkpoint
from outrider.export.distill.eagle3 import draft_ids, load_head
from outrider.export.distill.kinds import load_sharing_head
from outrider.export.heads.convert_head import convert_head
from outrider.export.heads.taps import choose_taps
from outrider.models import embedded_pair, pyscout
from outrider.models.pyscout import corpus, tokenizer
from outrider.models.pyscout.depth import depths
from outrider.models.pyscout.evaluate import make_cases
from outrider.models.pyscout.tasks import TaskMaker
from outrider.pipelines import LLMPipeline
from outrider.pipelines.model.heads.head_kind import tapped_layers

CHECKPOINTS = Path(pyscout.__file__).parent / "checkpoints"
FUNCTIONS = [corpus.Function("python", source) for source in corpus.extract(inspect.getsource(textwrap))]

KINDS = {"medusa": 0.05, "hydra": 0.1, "mtp": 0.4, "exit": 0.7}  # and the least share of first drafts that are accepted


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(CHECKPOINTS / "target", dtype=torch.float32).eval()


def test_the_head_is_small_and_shares_the_embedding_of_its_target() -> None:
    from safetensors import safe_open

    with safe_open(CHECKPOINTS / "head" / "model.safetensors", "pt") as weights:
        assert "embed_tokens.weight" not in weights.keys()  # noqa: SIM118  no mapping
        assert weights.get_slice("fc.weight").get_shape() == [256, 768]
    assert sum(file.stat().st_size for name in ("head", *KINDS) for file in (CHECKPOINTS / name).iterdir()) < 10 << 20
    config = json.loads((CHECKPOINTS / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_of_the_head_are_accepted(target: LlamaForCausalLM, temperature: float) -> None:
    head = load_head(CHECKPOINTS / "head", target)
    assert draft_ids(head).tolist() == list(range(tokenizer.VOCABULARY))
    words = tokenizer.load(CHECKPOINTS / "target")
    cases = make_cases(FUNCTIONS, TaskMaker(FUNCTIONS), "repeat", 4)
    found = depths(target, None, {"head": head}, words, cases, temperature)["head"]
    assert found["by_depth"][0] > 0.7
    assert found["tokens_per_pass"] > 2.5


@pytest.mark.slow
def test_drafts_for_a_prompt_that_is_asked_again_are_accepted_as_often(embedded_pair: Path) -> None:
    pipeline = LLMPipeline(embedded_pair)
    source = inspect.getsource(textwrap.wrap)

    def num_accepted(prompt: str) -> int:
        answer = pipeline.generate(prompt, mode="head", num_assistant_tokens=5, max_new_tokens=160)
        return answer.stats[0].accepted_by["head"]

    for num_spaces in range(2):  # so that the prompt ends elsewhere in a block of the target's cache
        prompt = f"Rename the parameter `width` to `columns`.\n\n{source}" + "\n" * num_spaces
        first = num_accepted(prompt)
        assert first > 50
        assert num_accepted(prompt) > 0.9 * first


@pytest.mark.slow
def test_heads_of_the_other_kinds_draft_for_the_target(target: LlamaForCausalLM) -> None:
    heads = {kind: load_sharing_head(CHECKPOINTS / kind, target) for kind in KINDS}
    words = tokenizer.load(CHECKPOINTS / "target")
    cases = make_cases(FUNCTIONS, TaskMaker(FUNCTIONS), "repeat", 4)
    found = depths(target, None, heads, words, cases, 0.0)
    for kind, least in KINDS.items():
        assert found[kind]["by_depth"][0] > least, kind


@pytest.mark.slow
def test_the_export_finds_the_layers_that_the_head_learnt_to_read(embedded_pair: Path, tmp_path: Path) -> None:
    pair = shutil.copytree(embedded_pair, tmp_path / "pair", ignore=shutil.ignore_patterns("draft"))
    described = json.loads((pair / "pair.json").read_text(encoding="utf-8"))
    del described["models"]["draft"]
    (pair / "pair.json").write_text(json.dumps(described), encoding="utf-8")
    learnt = tapped_layers(pair / "head", 6)
    found = choose_taps(pair, [(1, 4, 5), learnt])
    assert found["taps"] == [*learnt]
    assert tapped_layers(pair / "head", 6) == learnt
    assert found["acceptance_by_taps"]["0 3 5"] > 0.01 + found["acceptance_by_taps"]["1 4 5"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_a_head_of_another_kind_drafts_for_the_embedded_pair(kind: str, tmp_path: Path) -> None:
    checkpoints = [find_checkpoint(str(CHECKPOINTS / name), False, print) for name in (kind, "target")]
    convert_head(*checkpoints, tmp_path / "head")
    pipeline = LLMPipeline(embedded_pair(), head=tmp_path / "head", cache_tokens=1024)
    options: dict[str, Any] = {"max_new_tokens": 32, "ignore_eos": True, "num_assistant_tokens": 3}
    prompt = "Repeat this function:\n```python\ndef area(width, height):\n    return width * height\n```"
    for sampling in ({}, {"do_sample": True, "rng_seed": 3}):
        plain, drafted = (
            pipeline.generate(prompt, mode=mode, **options, **sampling).generations[0] for mode in ("off", "head")
        )
        assert drafted.token_ids == plain.token_ids
        assert 0 < drafted.stats.accepted < drafted.stats.drafted
