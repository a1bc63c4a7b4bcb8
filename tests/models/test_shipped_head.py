"""The head that comes with the embedded target is small, of the published layout, and often right."""

from __future__ import annotations

import inspect
import json
import textwrap
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from outrider.export.distill.eagle3 import draft_ids, load_head
from outrider.models import pyscout
from outrider.models.pyscout import corpus, tokenizer
from outrider.models.pyscout.depth import depths
from outrider.models.pyscout.evaluate import make_cases
from outrider.models.pyscout.tasks import TaskMaker

CHECKPOINTS = Path(pyscout.__file__).parent / "checkpoints"
FUNCTIONS = [corpus.Function("python", source) for source in corpus.extract(inspect.getsource(textwrap))]


def test_the_head_is_small_and_shares_the_embedding_of_its_target() -> None:
    from safetensors import safe_open

    with safe_open(CHECKPOINTS / "head" / "model.safetensors", "pt") as weights:
        assert "embed_tokens.weight" not in weights.keys()  # noqa: SIM118  no mapping
        assert weights.get_slice("fc.weight").get_shape() == [256, 768]
    assert sum(file.stat().st_size for file in (CHECKPOINTS / "head").iterdir()) < 6 << 20
    config = json.loads((CHECKPOINTS / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_of_the_head_are_accepted(temperature: float) -> None:
    target = LlamaForCausalLM.from_pretrained(CHECKPOINTS / "target", dtype=torch.float32).eval()
    head = load_head(CHECKPOINTS / "head", target)
    assert draft_ids(head).tolist() == list(range(tokenizer.VOCABULARY))
    words = tokenizer.load(CHECKPOINTS / "target")
    cases = make_cases(FUNCTIONS, TaskMaker(FUNCTIONS), "repeat", 4)
    found = depths(target, None, {"head": head}, words, cases, temperature)["head"]
    assert found["by_depth"][0] > 0.7
    assert found["tokens_per_pass"] > 2.5
