"""`outrider distill` for targets of many architectures: a head that suits them, or a refusal before they answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.export.distill import Distillation
from outrider.export.distill import run as distillation
from outrider.export.distill.kinds import SharingKind, make_head
from outrider.export.distill.run import Kind, Plan
from outrider.export.distill.run import run as run_plan
from outrider.export.distill.taps import norm_of
from outrider.pipelines.errors import InvalidOption

from .conftest import make_tokenizer, save

HOW = Distillation(batch_size=2, max_new_tokens=8)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"def area{n}(width"}) for n in range(2)))
    return path


TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 300}
LONG = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
OTHERS = {
    "phi3": {
        "num_key_value_heads": 1,
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONG,
        "max_position_embeddings": 256,
        "original_max_position_embeddings": 64,
        "eos_token_id": 0,
        "pad_token_id": 0,
    },
    "gemma3_text": {"num_key_value_heads": 1, "head_dim": 16, "sliding_window": 64},
    "granite": {"num_key_value_heads": 1, "logits_scaling": 8.0},
    "gemma2": {"num_key_value_heads": 1, "head_dim": 16, "final_logit_softcapping": 3.0, "initializer_range": 1.0},
    "starcoder2": {"num_key_value_heads": 1},
    "gpt_neox": {},
}


@pytest.mark.parametrize(
    ("model_type", "kind", "said"),
    [
        ("granite", "medusa", "GraniteForCausalLM scales or caps its logits"),
        ("gemma2", "exit", "Gemma2ForCausalLM scales or caps its logits"),
        ("starcoder2", "eagle3", "Starcoder2ForCausalLM does not have decoder layers like Llama's"),
        ("gpt_neox", "medusa", "GPTNeoXForCausalLM does not keep its last norm as Llama does"),
    ],
)
def test_a_target_that_no_such_head_fits_is_refused_before_it_answers(
    model_type: str, kind: Kind, said: str, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **TINY, **OTHERS[model_type])
    target = save(tmp_path / "target", AutoModelForCausalLM.from_config(config), make_tokenizer())
    monkeypatch.setattr(distillation, "write_answers", lambda *_: pytest.fail("the target was asked"))
    with pytest.raises(InvalidOption, match=said):
        run_plan(Plan(str(target), kind, prompts, HOW), tmp_path / "head")


@pytest.mark.parametrize(("model_type", "kind"), [("phi3", "eagle3"), ("phi3", "mtp"), ("gemma3_text", "mtp")])
def test_a_target_with_rotary_parameters_of_its_own_kind_gets_a_head_with_plain_ones(
    model_type: str, kind: Kind, prompts: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **TINY, **OTHERS[model_type])
    target = save(tmp_path / "target", AutoModelForCausalLM.from_config(config), make_tokenizer())
    out = run_plan(Plan(str(target), kind, prompts, HOW), tmp_path / "head")
    rope = json.loads((out / "config.json").read_text())["rope_parameters"]
    assert (rope["rope_type"], rope["rope_theta"]) == ("default", {"phi3": 1e4, "gemma3_text": 1e6}[model_type])


@pytest.mark.parametrize("kind", ["mtp", "exit"])
def test_a_head_of_a_gemma_begins_with_its_norm(kind: SharingKind) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model("gemma3_text", **TINY, **OTHERS["gemma3_text"])
    target = AutoModelForCausalLM.from_config(config)
    torch.nn.init.normal_(norm_of(target).weight)
    head: Any = make_head(kind, target, "target")
    states = torch.randn(5, 32)
    torch.testing.assert_close(head.norm(states), norm_of(target)(states))
