"""An exported EAGLE-3 head computes what its checkpoint does, drafts for its target, and for no other."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from outrider.export import Compression, export_pair, pair_export
from outrider.export.checkpoint import find_checkpoint
from outrider.export.errors import ConversionFailed, NotADecoder
from outrider.export.heads import eagle3
from outrider.export.heads.ir import rewrite
from outrider.pipelines import LLMPipeline, Pair
from outrider.pipelines.errors import InvalidOption, UnsupportedModel
from outrider.pipelines.model.heads.eagle3_model import Eagle3Model
from outrider.pipelines.model.heads.embedding import embedding, without_embedding
from outrider.pipelines.model.heads.head_kind import open_head, tapped_layers
from outrider.pipelines.model.heads.head_model import HeadWindow
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.target import Window
from tests.genai_with_head import EXACT, GenaiWithHead

from .conftest import make_llama, make_tokenizer, save
from .test_dflash import norm, turned

LAYERS, WIDTH, VOCABULARY, KNOWN = 6, 128, 300, 100
TAPS = (0, 2, 4)


def make_head(target: Any, known: int = KNOWN, seed: int = 3) -> Any:
    """One with random weights that knows every third token, or all."""
    import torch
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
    from transformers import LlamaConfig

    torch.manual_seed(seed)
    sizes = {"num_hidden_layers": 1, "draft_vocab_size": known, "tie_word_embeddings": False, "initializer_range": 0.1}
    head = LlamaEagle3ForCausalLM(LlamaConfig(**{**target.config.to_dict(), **sizes})).eval()
    head.model.d2t.copy_(torch.arange(known) * (VOCABULARY // known - 1))
    head.model.embed_tokens.weight.data = target.model.embed_tokens.weight.data.float()
    return head


def save_head(folder: Path, head: Any, **config: Any) -> Path:
    """As the heads on the hub are saved: without an embedding."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    weights = {name: weight.contiguous() for name, weight in head.model.state_dict().items() if "embed" not in name}
    save_file(weights, folder / "model.safetensors")
    described = {**head.config.to_dict(), "architectures": ["LlamaForCausalLMEagle3"], **config}
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def head(deep: Any) -> Any:
    return make_head(deep)


@pytest.fixture(scope="module")
def head_checkpoint(head: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_head(tmp_path_factory.mktemp("checkpoints") / "head", head, eagle_taps=list(TAPS))


@pytest.fixture(scope="module")
def pair(deep_target: Path, head_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_pair(
        deep_target,
        head_checkpoint,
        tmp_path_factory.mktemp("pairs") / "pair",
        target_compression=Compression("fp16"),
        draft_compression=Compression("fp16"),
    )


def converted(head: Path, target: Path, folder: Path) -> Path:
    eagle3.convert_eagle3(*(find_checkpoint(str(each), False, print) for each in (head, target)), folder)
    return folder


def test_the_head_computes_what_its_checkpoint_does(pair: Path, deep: Any, head: Any) -> None:
    """From the states of the real target, then step by step from its own, each time from the beginning in torch."""
    import torch

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, 40).tolist()
    target = PagedModel(pair / "target", 4, {"KV_CACHE_PRECISION": "f32"}, exact=False, taps=TAPS)
    target.forward([Window(tokens, 0, [0, 1], len(tokens))])
    states = target.hidden_states()[0].copy()
    with torch.no_grad():
        outputs = deep.float()(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    assert np.allclose(states, torch.cat([outputs[tap + 1][0] for tap in TAPS], -1), atol=0.05)

    compiled = Eagle3Model(pair / "head", pair / "target", 4, {"KV_CACHE_PRECISION": "f32"})
    assert compiled.vocabulary.tolist() == [3 * i for i in range(KNOWN)]
    logits, own = compiled.forward([HeadWindow(tokens[1:], 0, [2, 0], states[:-1])])
    written: list[int] = []
    for place in range(len(tokens) - 1, len(tokens) + 4):
        expected, expected_own = slowly(head, states[:-1], tokens[1:], written)
        assert np.allclose(logits[0], expected, atol=0.02)
        assert np.allclose(own[0], expected_own, atol=0.02)
        written.append(int(rng.integers(0, VOCABULARY)))
        logits, own = compiled.forward([HeadWindow(written[-1:], place, [2, 0], own.copy(), is_own=True)])


def test_a_head_of_fp16_stores_its_products_so_and_not_the_frequencies(pair: Path) -> None:
    found = json.loads((pair / "pair.json").read_text())["models"]["head"]
    assert found["weights"] == "fp16"
    assert found["precisions"]["f16"] > 50 * found["precisions"]["f32"]
    assert found["precisions"]["f32"] > 0


def slowly(head: Any, states: np.ndarray, tokens: list[int], written: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits and own state after the last token, from a pass over the states of the target and one for each token
    written, with the cache of transformers."""
    import torch

    seen: list[torch.Tensor] = []
    hook = head.model.norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        with torch.no_grad():
            fed = {"input_ids": torch.tensor([tokens]), "hidden_states": torch.tensor(states)[None]}
            output = head(**fed, use_cache=True)
            for token in written:
                fed = {"input_ids": torch.tensor([[token]]), "hidden_states": seen[-1][:, -1:]}
                output = head(**fed, past_key_values=output.past_key_values, use_cache=True)
    finally:
        hook.remove()
    return output.logits[0, -1].numpy(), seen[-1][0, -1].numpy()


@pytest.mark.slow
def test_a_head_as_vllm_describes_one_computes_what_it_does_there(
    deep: Any, deep_target: Path, pair: Path, tmp_path: Path
) -> None:
    """Its residual is normed, it knows all tokens without saying so, and its layer has another name."""
    from safetensors.torch import load_file, save_file

    config = {"norm_before_residual": True, "draft_vocab_size": None, "target_hidden_size": None}
    checkpoint = save_head(tmp_path / "checkpoint", head := make_head(deep, known=VOCABULARY), **config)
    weights = load_file(file := checkpoint / "model.safetensors")
    save_file(
        {name.replace("midlayer.", "layers.0."): weight for name, weight in weights.items() if "2" not in name}, file
    )
    folder = converted(checkpoint, deep_target, tmp_path / "head")
    compiled = Eagle3Model(folder, pair / "target", 4, {"KV_CACHE_PRECISION": "f32"})
    assert compiled.vocabulary.tolist() == [*range(VOCABULARY)]
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, 40).tolist()
    states = rng.normal(size=(len(tokens), compiled.tap_width)).astype(np.float32)
    logits, own = compiled.forward([HeadWindow(tokens, 0, [2, 0], states)])
    written: list[int] = []
    for place in range(len(tokens), len(tokens) + 4):
        expected, expected_own = as_in_vllm(head, states, tokens, written)
        assert np.allclose(logits[0], expected, atol=0.02)
        assert np.allclose(own[0], expected_own, atol=0.02)
        written.append(int(rng.integers(0, VOCABULARY)))
        logits, own = compiled.forward([HeadWindow(written[-1:], place, [2, 0], own.copy(), is_own=True)])


def as_in_vllm(head: Any, states: np.ndarray, tokens: list[int], written: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """What `slowly` gives, where the residual is taken after the norm; in float64, head by head of the attention, and
    without a cache."""
    import torch

    weights = {name.removeprefix("midlayer."): weight.double() for name, weight in head.model.state_dict().items()}
    config, size = head.config, head.config.head_dim
    with torch.no_grad():
        read = torch.tensor(states).double() @ weights["fc.weight"].T
        for count in range(len(written) + 1):
            embedded = weights["embed_tokens.weight"][torch.tensor([*tokens, *written[:count]])]
            residual = norm(read, weights["hidden_norm.weight"])
            both = torch.cat([norm(embedded, weights["input_layernorm.weight"]), residual], -1)
            query, key, value = (
                (both @ weights[f"self_attn.{name}_proj.weight"].T).split(size, -1) for name in ("q", "k", "v")
            )
            hidden = torch.full((len(both), len(both)), -torch.inf).triu(1)
            mixed = []
            for i, mine in enumerate(query):
                shared = i // (config.num_attention_heads // config.num_key_value_heads)
                scores = turned(mine, 0, config) @ turned(key[shared], 0, config).T / size**0.5
                mixed.append(torch.softmax(scores + hidden, -1) @ value[shared])
            x = residual + torch.cat(mixed, -1) @ weights["self_attn.o_proj.weight"].T
            normed = norm(x, weights["post_attention_layernorm.weight"])
            gate = torch.nn.functional.silu(normed @ weights["mlp.gate_proj.weight"].T)
            x = x + (gate * (normed @ weights["mlp.up_proj.weight"].T)) @ weights["mlp.down_proj.weight"].T
            read = torch.cat([read, x[-1:]])
        return (norm(x[-1], weights["norm.weight"]) @ weights["lm_head.weight"].T).numpy(), x[-1].numpy()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"norm_before_fc": True}, r"norms the states of its target .*\(norm_before_fc: true\), which cannot"),
        ({"eagle_config": {"norm_before_fc": True}}, r"\(norm_before_fc: true\)"),
        ({"fc_norm": True}, r"\(fc_norm: true\)"),
        ({"norm_output": True}, r"\(norm_output: true\)"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "reads the last hidden state of its target only"),
        ({"layer_types": ["sliding_attention"]}, "reads the latest tokens only"),
        ({"modal_type": "VLM"}, "drafts for a target of images and text"),
        ({"target_model_type": "qwen3_vl"}, "drafts for a target of images and text"),
        ({"attention_bias": True}, r"not those of an EAGLE-3 head: midlayer\.self_attn\.o_proj\.bias"),
        ({"mlp_bias": True}, r"not those of an EAGLE-3 head: midlayer\.mlp\.down_proj\.bias"),
    ],
    ids=str,
)
def test_a_head_that_computes_something_else_is_refused(
    deep_target: Path, head: Any, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    checkpoint = save_head(tmp_path / "head", head, **config)
    with pytest.raises((UnsupportedModel, ConversionFailed), match=message):
        converted(checkpoint, deep_target, tmp_path / "converted")


@pytest.mark.parametrize("name", ["d2t", "lm_head.weight"])
def test_a_head_without_what_it_knows_tokens_by_is_refused(
    deep_target: Path, head: Any, tmp_path: Path, name: str
) -> None:
    """It may say that it shares the target's embedding (`tie_word_embeddings`)."""
    from safetensors.torch import load_file, save_file

    checkpoint = save_head(tmp_path / "head", head, tie_word_embeddings=True)
    weights = load_file(file := checkpoint / "model.safetensors")
    del weights[name]
    save_file(weights, file)
    with pytest.raises(ConversionFailed, match=f"not those of an EAGLE-3 head: {name}"):
        converted(checkpoint, deep_target, tmp_path / "converted")


def test_sequences_of_both_kinds_share_a_pass_of_the_head(pair: Path) -> None:
    model = Eagle3Model(pair / "head", pair / "target", 6)
    rng = np.random.default_rng(1)
    states = rng.normal(size=(9, model.tap_width)).astype(np.float32)
    own = rng.normal(size=(1, model.width)).astype(np.float32)
    windows = [
        HeadWindow(range(9), 0, [0], states),
        HeadWindow([5], 0, [1], own, is_own=True),
        HeadWindow(range(4), 0, [2], states[:4]),
    ]
    together = [each.copy() for each in model.forward(windows)]
    for i, window in enumerate(windows):
        alone = model.forward([replace(window, blocks=[3 + i])])
        for many, one in zip(together, alone, strict=True):
            assert np.allclose(many[i], one[0], atol=1e-4)


@pytest.mark.slow
def test_a_pair_with_a_head_answers_alike_in_every_mode(pair: Path) -> None:
    pipeline = LLMPipeline(pair, cache_tokens=1024, exact=True)
    assert pipeline.modes == ("off", "lookup", "suffix", "recycling", "head", "chained", "auto")
    for options in ({}, {"do_sample": True, "rng_seed": 3}):
        answers = [
            pipeline.generate(
                "area = width", mode=mode, max_new_tokens=40, ignore_eos=True, num_assistant_tokens=3, **options
            ).generations[0]
            for mode in pipeline.modes
        ]
        assert len({answer.token_ids for answer in answers}) == 1
        assert answers[pipeline.modes.index("head")].stats.drafted > 0


@pytest.mark.slow
def test_the_text_is_openvino_genais_with_the_same_head(pair: Path) -> None:
    """Without rounding in the caches."""
    options = {"max_new_tokens": 40, "num_assistant_tokens": 3, "ignore_eos": True, "apply_chat_template": False}
    genai, ours = GenaiWithHead(pair, **EXACT), LLMPipeline(pair, exact=False, **EXACT)
    for prompt in ("area = width", "The quick"):
        (answer,) = ours.generate([prompt], mode="head", **options).generations
        assert answer.stats.drafted > 0
        assert answer.text == genai.generate(prompt, **options)[0]


@pytest.mark.slow
def test_a_head_is_found_by_its_architecture_and_can_stand_beside_a_draft_model(
    deep_target: Path, draft: Path, head_checkpoint: Path, tmp_path: Path
) -> None:
    fp16 = Compression("fp16")
    int4 = Compression("int4", group_size=32)
    both = export_pair(
        deep_target, draft, tmp_path / "both", head=head_checkpoint, target_compression=fp16, head_compression=int4
    )
    pair = Pair.open(both)
    assert pair.draft is not None
    assert pair.head is not None
    facts = json.loads((both / "pair.json").read_text(encoding="utf-8"))
    assert facts["models"]["head"]["architecture"] == "LlamaForCausalLMEagle3"
    assert facts["models"]["head"]["taps"] == list(TAPS)
    assert {role: facts["models"][role]["weights"] for role in ("draft", "head")} == {"draft": "int8", "head": "int4"}
    assert ["i4" in facts["models"][role]["precisions"] for role in ("draft", "head")] == [False, True]
    assert facts["checks"]["round_trip"]["head"]["drafted"] > 0
    assert tapped_layers(pair.head, LAYERS) == TAPS
    assert {"draft", "head"} < {*LLMPipeline(both, cache_tokens=1024, exact=True).modes}
    assert own_embedding(pair.head) == [1, WIDTH], "the target's embedding is stored a second time"


@pytest.mark.slow
def test_of_layers_that_a_head_may_mean_those_are_taken_that_serve_it_best(
    deep_target: Path, head: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider.export.heads import taps as exporting

    checkpoint = save_head(tmp_path / "head", head, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 5]})
    tried: list[tuple[int, ...]] = []

    def acceptance(pair: Path) -> float:
        assert LLMPipeline(pair, cache_tokens=1024, exact=False).generate("area", mode="head", max_new_tokens=4)
        tried.append(tapped_layers(pair / "head", LAYERS))
        return {(0, 2, 4): 0.25, (1, 3, 5): 0.5}[tried[-1]]

    monkeypatch.setattr(exporting, "_acceptance", acceptance)
    monkeypatch.setattr(pair_export, "round_trip", lambda folder: {"exact": True})  # which others test
    made = export_pair(deep_target, checkpoint, tmp_path / "pair", target_compression=Compression("fp16"))
    assert tried == [(0, 2, 4), (1, 3, 5)]
    assert tapped_layers(made / "head", LAYERS) == (1, 3, 5)
    facts = json.loads((made / "pair.json").read_text(encoding="utf-8"))["models"]["head"]
    assert (facts["taps"], facts["acceptance_by_taps"]) == ([1, 3, 5], {"0 2 4": 0.25, "1 3 5": 0.5})


@pytest.mark.slow
def test_a_head_that_optimum_intel_exported_drafts_the_same(
    pair: Path, head_checkpoint: Path, deep_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an embedding of its own, which was never trained, and does not say which layers it reads."""
    monkeypatch.setattr(eagle3, "rewrite", lambda folder, change: None)
    theirs = converted(head_checkpoint, deep_target, tmp_path / "theirs")
    assert own_embedding(theirs) == [VOCABULARY, WIDTH]
    assert tapped_layers(theirs, 12) == (2, 6, 9)
    ours = shutil.copytree(theirs, tmp_path / "ours")
    rewrite(ours, without_embedding)
    assert own_embedding(ours) == [1, WIDTH]
    drafts = []
    for folder in (theirs, ours):
        model = open_head(folder, pair / "target", 4)
        rng = np.random.default_rng(0)
        states = rng.normal(size=(40, model.tap_width)).astype(np.float32)
        window, tokens = HeadWindow(rng.integers(0, VOCABULARY, 40).tolist(), 0, [2, 0], states), list[int]()
        for place in range(40, 48):
            logits, own = model.forward([window])
            tokens.append(int(model.vocabulary[logits[0].argmax()]))
            window = HeadWindow(tokens[-1:], place, [2, 0], own.copy(), is_own=True)
        drafts.append(tokens)
    assert drafts[0] == drafts[1]
    assert len({*drafts[0]}) > 1


def own_embedding(folder: Path) -> list[int]:
    """The shape of the embedding that an IR looks tokens up in."""
    return list(embedding(ov.Core().read_model(folder / "openvino_model.xml")).get_input_shape(0))


def test_a_head_of_another_target_is_refused(target: Path, head_checkpoint: Path, tmp_path: Path) -> None:
    wider = make_llama(256, 4, seed=1)
    other = save(tmp_path / "other", wider, make_tokenizer())
    with pytest.raises(UnsupportedModel, match=r"head for a model with 128 numbers in a hidden state, and .* has 256"):
        export_pair(other, head_checkpoint, tmp_path / "pair")
    with pytest.raises(UnsupportedModel, match=r"wants hidden states of layer 4, and .* has 2"):
        export_pair(target, head_checkpoint, tmp_path / "pair")
    assert not (tmp_path / "pair").exists()


def test_weights_of_a_draft_model_that_is_not_there_are_refused(
    deep_target: Path, head_checkpoint: Path, tmp_path: Path
) -> None:
    weights = {"draft_compression": Compression("int4"), "head_compression": Compression("int8")}
    with pytest.raises(InvalidOption, match="--draft-weights int4 is for a draft model, and none is given"):
        export_pair(deep_target, head_checkpoint, tmp_path / "pair", **weights)


def test_what_is_no_head_is_refused_by_its_name(
    deep_target: Path, draft: Path, head: Any, head_checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotADecoder, match="not a head: give it with --draft"):
        export_pair(deep_target, None, tmp_path / "pair", head=draft)
    with pytest.raises(NotADecoder, match="is a head, not a target"):
        export_pair(head_checkpoint, None, tmp_path / "pair")
    with pytest.raises(InvalidOption, match="--head-weights int4 is for a head, and none is given: leave it out"):
        export_pair(deep_target, draft, tmp_path / "pair", head_compression=Compression("int4"))
    with pytest.raises(NotADecoder, match="is a head, as is"):
        export_pair(deep_target, head_checkpoint, tmp_path / "pair", head=head_checkpoint)
    other = shutil.copytree(head_checkpoint, tmp_path / "other")
    described = json.loads((other / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps({**described, "architectures": ["EAGLEModel"]}))
    with pytest.raises(NotADecoder, match="a head of EAGLE's first version"):
        export_pair(deep_target, other, tmp_path / "pair")
    del head.model.midlayer.mlp.up_proj  # the last use of it in this file
    incomplete = save_head(tmp_path / "incomplete", head, eagle_taps=list(TAPS))
    with pytest.raises(ConversionFailed, match=r"not those of an EAGLE-3 head: midlayer.mlp.up_proj.weight"):
        export_pair(deep_target, incomplete, tmp_path / "pair")
    assert not (tmp_path / "pair").exists()
