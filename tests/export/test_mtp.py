"""An exported head of multi-token prediction computes what its checkpoint does, and drafts for its target."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from outrider.export import Compression, export_pair
from outrider.export.checkpoint import find_checkpoint
from outrider.export.convert import convert
from outrider.export.errors import ConversionFailed, NotADecoder
from outrider.export.quiet import quiet
from outrider.models.errors import NoSuchModel
from outrider.pipelines import LLMPipeline, Pair
from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.heads.head_kind import open_head, tapped_layers
from outrider.pipelines.model.heads.head_model import HeadModel, HeadWindow
from outrider.pipelines.model.heads.mtp_model import MtpModel
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.profile import profile_path
from outrider.pipelines.model.target import Window

from .conftest import make_llama, make_tokenizer, save

LAYERS, WIDTH, VOCABULARY = 2, 128, 300
EXACT = {"KV_CACHE_PRECISION": "f32"}
FP16 = {"target_compression": Compression("fp16"), "draft_compression": Compression("fp16")}


def make_mtp(config: Any, layer: type, norm: type, seed: int = 3) -> Any:
    """A head with random weights: its parts, each of its own norms about one."""
    import torch

    torch.manual_seed(seed)
    config = type(config)(**{**config.to_dict(), "num_hidden_layers": 1, "layer_types": None})
    config._attn_implementation = "eager"
    norms = {name: norm(WIDTH, config.rms_norm_eps) for name in ("enorm", "hnorm", "norm")}
    head = torch.nn.ModuleDict({**norms, "eh_proj": torch.nn.Linear(2 * WIDTH, WIDTH, bias=False)})
    head["layer"] = layer(config, 0)
    for name, weight in head.named_parameters():
        torch.nn.init.normal_(weight, 1.0 if "norm" in name else 0.0, 0.1)
    return head.eval()


def slowly(model: Any, head: Any, rotary: Any, states: np.ndarray, tokens: list[int], written: list[int]) -> Any:
    """Logits and own state after the last token: a pass over all rows for each token written, without a cache."""
    import torch

    embed, states = model.get_input_embeddings().weight.float(), torch.tensor(states)
    with torch.no_grad():
        for count in range(len(written) + 1):
            read = embed[torch.tensor([*tokens, *written[:count]])]
            joined = head["eh_proj"](torch.cat([head["enorm"](read), head["hnorm"](states)], -1))[None]
            seen = torch.full((len(states), len(states)), float("-inf")).triu(1)[None, None]
            turned = rotary(joined, position_ids=torch.arange(len(states))[None])
            output = head["layer"](joined, attention_mask=seen, position_embeddings=turned)
            own = head["norm"](output[0, -1:])
            states = torch.cat([states, own])
        return model.get_output_embeddings().float()(own)[0].numpy(), own[0].numpy()


def assert_computes(pair: Path, model: Any, head: Any, rotary: Any) -> None:
    """What the reference does: from the states of the real target, then step by step from its own."""
    import torch

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, 40).tolist()
    target = PagedModel(pair / "target", 4, EXACT, exact=False, taps=tapped_layers(pair / "head", LAYERS))
    target.forward([Window(tokens, 0, [0, 1], len(tokens))])
    states = target.hidden_states()[0].copy()
    with torch.no_grad():
        last = model.float().get_decoder()(torch.tensor([tokens])).last_hidden_state[0]
    assert np.allclose(states, last, atol=0.05)
    compiled = open_head(pair / "head", pair / "target", 4, EXACT)
    assert isinstance(compiled, MtpModel)
    logits, own = compiled.forward([HeadWindow(tokens[1:], 0, [2, 0], states[:-1])])
    written: list[int] = []
    for place in range(len(tokens) - 1, len(tokens) + 4):
        expected, expected_own = slowly(model, head, rotary, states[:-1], tokens[1:], written)
        assert np.allclose(own[0], expected_own, atol=0.02)
        assert np.allclose(logits[0], expected, atol=0.05)
        written.append(int(rng.integers(0, VOCABULARY)))
        logits, own = compiled.forward([HeadWindow(written[-1:], place, [2, 0], own.copy(), is_own=True)])


@pytest.fixture(scope="module")
def llama() -> Any:
    return make_llama(WIDTH, LAYERS, seed=1)  # as that of `target`


@pytest.fixture(scope="module")
def head(llama: Any) -> Any:
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

    return make_mtp(llama.config, LlamaDecoderLayer, LlamaRMSNorm)


@pytest.fixture(scope="module")
def head_checkpoint(llama: Any, head: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_head(tmp_path_factory.mktemp("checkpoints") / "head", llama.config, head)


def save_head(folder: Path, config: Any, head: Any, **changed: Any) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    save_file(dict(head.state_dict()), folder / "model.safetensors")
    names = (
        "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "rms_norm_eps",
        "rope_parameters", "vocab_size",
    )  # fmt: skip
    described = {name: config.to_dict()[name] for name in names}
    described |= {"architectures": ["MtpHead"], "model_type": "llama", **changed}
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pair(target: Path, head_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_pair(target, head_checkpoint, tmp_path_factory.mktemp("pairs") / "pair", **FP16)


def test_the_head_computes_what_its_checkpoint_does(pair: Path, llama: Any, head: Any) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    facts = json.loads((pair / "pair.json").read_text(encoding="utf-8"))["models"]["head"]
    assert (facts["kind"], facts["taps"]) == ("mtp", [LAYERS])
    assert_computes(pair, llama, head, LlamaRotaryEmbedding(llama.config))


def test_sequences_of_both_kinds_share_a_pass_of_the_head(pair: Path) -> None:
    model: HeadModel = MtpModel(pair / "head", pair / "target", 6)
    rng = np.random.default_rng(1)
    states = rng.normal(size=(9, WIDTH)).astype(np.float32)
    windows = [
        HeadWindow(range(9), 0, [0], states),
        HeadWindow([5], 0, [1], states[3:4], is_own=True),
        HeadWindow(range(4), 0, [2], states[:4]),
    ]
    together = [each.copy() for each in model.forward(windows)]
    for i, window in enumerate(windows):
        alone = model.forward([replace(window, blocks=[3 + i])])
        for many, one in zip(together, alone, strict=True):
            assert np.allclose(many[i], one[0], atol=1e-4)


def test_a_pair_with_a_head_answers_alike_in_every_mode(pair: Path) -> None:
    pipeline = LLMPipeline(pair, cache_tokens=1024, exact=True)
    assert pipeline.modes == ("off", "lookup", "suffix", "recycling", "head", "chained", "auto")
    for options in ({}, {"do_sample": True, "rng_seed": 3}):
        answers = [
            pipeline.generate(
                ["area = width", "The quick"], mode=mode, max_new_tokens=30, ignore_eos=True, num_assistant_tokens=3,
                **options,
            ).generations
            for mode in pipeline.modes
        ]  # fmt: skip
        for each in zip(*answers, strict=True):
            assert len({answer.token_ids for answer in each}) == 1
        assert all(answer.stats.drafted > 0 for answer in answers[pipeline.modes.index("head")])


@pytest.mark.slow
def test_a_head_that_optimum_intel_put_next_to_its_target_is_run(pair: Path, llama: Any, tmp_path: Path) -> None:
    """That of Qwen3.5, whose positions are three numbers a token (M-RoPE), which are the same in texts."""
    import torch
    from optimum.exporters.openvino.convert import export
    from optimum.exporters.openvino.model_configs import Qwen3_5MTPOpenVINOConfig
    from optimum.exporters.openvino.model_patcher import Qwen3_5MTPModule
    from transformers import Qwen3_5TextConfig

    torch.manual_seed(3)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "head_dim": 32}
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2]}
    config = Qwen3_5TextConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, rope_parameters=rope)
    head = Qwen3_5MTPModule(config).eval()
    for weight in head.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.1)
    head.config.model_type = "qwen3_5_mtp"
    with quiet():
        export(head, Qwen3_5MTPOpenVINOConfig(config), tmp_path / "openvino_mtp_model.xml", stateful=True)
    (tmp_path / "config.json").write_text("{}")
    found = Pair.open(pair).with_head(tmp_path)
    assert found.head == tmp_path
    assert profile_path(found, "CPU", {}, None) != profile_path(Pair.open(pair), "CPU", {}, None)
    assert tapped_layers(tmp_path, LAYERS) == (LAYERS,)

    def slowly(states: np.ndarray, tokens: list[int]) -> np.ndarray:
        count = len(tokens)
        embedded = llama.get_input_embeddings().weight.float()[torch.tensor(tokens)][None]
        with torch.no_grad():
            seen, positions = torch.ones(1, count, dtype=torch.long), torch.arange(count)[None]
            return head(torch.tensor(states)[None], embedded, seen, positions)["last_hidden_state"][0, -1].numpy()

    model = open_head(tmp_path, pair / "target", 4, EXACT)
    projection = llama.get_output_embeddings().weight.detach().float().numpy()
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, 40).tolist()
    states = rng.normal(size=(len(tokens), WIDTH)).astype(np.float32)
    logits, own = model.forward([HeadWindow(tokens, 0, [2, 0], states)])
    for _ in range(3):
        expected = slowly(states, tokens)
        assert np.allclose(own[0], expected, atol=1e-3)
        assert np.allclose(logits[0], projection @ expected, atol=0.02)
        states = np.concatenate([states, own.copy()])
        tokens.append(int(rng.integers(0, VOCABULARY)))
        logits, own = model.forward([HeadWindow(tokens[-1:], len(tokens) - 1, [2, 0], states[-1:], is_own=True)])


@pytest.mark.parametrize(
    ("inputs", "output", "message"),
    [
        ({"input_ids": 2}, "last_hidden_state", "does not read inputs_embeds and reads input_ids, unlike the"),
        ({"inputs_embeds": 3, "position_ids": 3}, "last_hidden_state", "reads several positions a token, unlike the"),
        ({"inputs_embeds": 3}, "logits", "does not put out last_hidden_state, unlike the heads"),
    ],
    ids=str,
)
def test_a_head_next_to_its_target_that_reads_something_else_is_refused(
    pair: Path, tmp_path: Path, inputs: dict[str, int], output: str, message: str
) -> None:
    ranks = {"hidden_states": 3, "attention_mask": 2, "position_ids": 2, "beam_idx": 1, **inputs}
    nodes = [ops.parameter([-1] * rank, ov.Type.f32, name=name) for name, rank in ranks.items()]
    for name, node in zip(ranks, nodes, strict=True):
        node.output(0).set_names({name})
    states = ops.relu(nodes[0])
    states.output(0).set_names({output})
    ov.save_model(ov.Model([ops.result(states)], nodes), tmp_path / "openvino_mtp_model.xml")
    with pytest.raises(UnsupportedModel, match=message):
        open_head(tmp_path, pair / "target", 4)


@pytest.mark.slow
def test_a_target_brings_its_head_along(tmp_path: Path) -> None:
    """Of MiMo, whose head reads the hidden state first, and whose decoder is Qwen2's."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm, Qwen2RotaryEmbedding

    torch.manual_seed(1)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(**sizes, num_hidden_layers=LAYERS, initializer_range=0.1, eos_token_id=0)
    model = Qwen2ForCausalLM(config).half()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.q_proj.bias)
    checkpoint = save(tmp_path / "MiMo", model, make_tokenizer())
    head = make_mtp(config, Qwen2DecoderLayer, Qwen2RMSNorm)
    described = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    described |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    described["auto_map"] = {"AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"}
    (checkpoint / "config.json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(NoSuchModel, match=r"has no weights model\.mtp_layers\.\*: choose a checkpoint that has"):
        export_pair(checkpoint, None, tmp_path / "pair", head=checkpoint)

    names = {"enorm": "token_layernorm", "hnorm": "hidden_layernorm", "norm": "final_layernorm"}
    names |= {"eh_proj": "input_proj"}
    weights = load_file(checkpoint / "model.safetensors")
    for name, weight in head.state_dict().items():
        part, rest = name.split(".", 1)
        if part == "eh_proj":
            weight = torch.cat([weight[:, WIDTH:], weight[:, :WIDTH]], -1)
        weights["model.mtp_layers.0." + (rest if part == "layer" else f"{names[part]}.{rest}")] = weight.contiguous()
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    pair = export_pair(checkpoint, None, tmp_path / "pair", head=checkpoint, **FP16)
    assert Pair.open(pair).head is not None
    assert_computes(pair, model, head, Qwen2RotaryEmbedding(config))


def test_what_cannot_be_a_head_of_this_target_is_refused(
    target: Path, draft: Path, llama: Any, head: Any, head_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=r"head for a model with 128 numbers in a hidden state, and .* has 64"):
        export_pair(draft, head_checkpoint, tmp_path / "pair")
    del (broken := deepcopy(head))["layer"].mlp.up_proj
    incomplete = save_head(tmp_path / "incomplete", llama.config, broken)
    with pytest.raises(ConversionFailed, match=r"not those of an MTP head: model.layers.0.mlp.up_proj.weight"):
        export_pair(target, incomplete, tmp_path / "pair")
    assert not (tmp_path / "pair").exists()


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [
        ("DeepseekV3ForCausalLM", {"model_type": "deepseek_v3", "kv_lora_rank": 512}, "multi-head latent attention: "),
        (
            "Glm4MoeLiteForCausalLM",
            {"model_type": "glm4_moe_lite", "kv_lora_rank": 512, "n_routed_experts": 64},
            "multi-head latent attention and mixtures of experts: leave --head out",
        ),
        ("Ernie4_5_MoeForCausalLM", {"model_type": "ernie4_5_moe", "moe_num_experts": 64}, "mixtures of experts: "),
        ("LlamaForCausalLM", {"model_type": "llama"}, "the names of its weights: "),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_the_head_within_a_target_needs_that_cannot_be_run_yet_is_named(
    target: Path, head_checkpoint: Path, tmp_path: Path, architecture: str, config: dict[str, Any], message: str
) -> None:
    (tmp_path / "model.safetensors").symlink_to(head_checkpoint / "model.safetensors")
    described = {"architectures": [architecture], "num_nextn_predict_layers": 1, **config}
    (tmp_path / "config.json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(NotADecoder, match=rf"MTP head .*\({architecture}\) cannot be run yet, for want of {message}"):
        export_pair(target, None, tmp_path / "pair", head=tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**described, "num_nextn_predict_layers": 0}), encoding="utf-8")
    with pytest.raises(NotADecoder, match=f"is a {architecture}, not a head: give it with --draft"):
        export_pair(target, None, tmp_path / "pair", head=tmp_path)


def test_a_head_of_a_target_of_another_width_is_refused(pair: Path, tmp_path: Path) -> None:
    narrow = save(tmp_path / "narrow", make_llama(64, 1, seed=1), make_tokenizer())
    convert(find_checkpoint(str(narrow), False, print), tmp_path / "target", half=True)
    with pytest.raises(UnsupportedModel, match="hidden states have 128 numbers, and this target's have 64"):
        open_head(pair / "head", tmp_path / "target", 4)
