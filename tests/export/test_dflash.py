"""An exported DFlash head computes what its checkpoint does, and drafts for its target as for OpenVINO GenAI."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest

from outrider.export import Compression, export_pair
from outrider.export.checkpoint import find_checkpoint
from outrider.export.errors import ConversionFailed
from outrider.export.heads import dflash
from outrider.export.heads.ir import rewrite
from outrider.pipelines import LLMPipeline
from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.heads.dflash_model import DFlashModel
from outrider.pipelines.model.heads.head_kind import open_head, tapped_layers
from outrider.pipelines.model.heads.head_model import HeadWindow
from tests.dflash import BLOCK, MASK, TAPS, random_head, save_head
from tests.genai_with_head import EXACT, GenaiWithHead

from .conftest import make_tokenizer, save

LAYERS, VOCABULARY = 6, 300
PROMPT, NEW_TOKENS, STEPS = "area = width", 60, 60


@pytest.fixture(scope="module")
def head(deep: Any) -> Any:
    return random_head(deep.config)


@pytest.fixture(scope="module")
def pair(deep_target: Path, head: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoint = save_head(tmp_path_factory.mktemp("checkpoints") / "head", head)
    return export_pair(
        deep_target,
        checkpoint,
        tmp_path_factory.mktemp("pairs") / "pair",
        target_compression=Compression("fp16"),
        draft_compression=Compression("fp16"),
    )


@pytest.fixture(scope="module")
def model(pair: Path) -> DFlashModel:
    opened = open_head(pair / "head", pair / "target", 6)
    assert isinstance(opened, DFlashModel)
    return opened


def test_the_head_computes_what_its_checkpoint_does(model: DFlashModel, pair: Path, deep: Any, head: Any) -> None:
    """From states that come in several passes, and for all tokens of a block; in torch each time from the beginning."""
    facts = json.loads((pair / "pair.json").read_text(encoding="utf-8"))["models"]["head"]
    assert (facts["kind"], facts["taps"], tapped_layers(pair / "head", LAYERS)) == ("dflash", list(TAPS), TAPS)
    assert model.depth == BLOCK - 1
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, 80).tolist()
    states = rng.normal(size=(len(tokens), model.tap_width)).astype(np.float32)
    start = 0
    for end in (5, 6, 40, 31, 64, 79):  # across blocks, exactly to an end of one, and back
        start = min(start, end - 1)
        window = HeadWindow(tokens[start + 1 : end + 1], start, [4, 0, 3], states[start:end])
        expected = slowly(deep, head, states[:end], tokens[end])
        assert np.allclose(drafted(model, window), expected, atol=0.05)
        start = end


def test_a_head_that_optimum_intel_exported_is_read_as_it_describes_itself(
    pair: Path, model: DFlashModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its IR names the layers in a place of their own, and only its configuration the size of a block."""
    models = json.loads((pair / "pair.json").read_text(encoding="utf-8"))["models"]
    head, target = (find_checkpoint(models[role]["source"], False, print) for role in ("head", "target"))
    monkeypatch.setattr(dflash, "rewrite", lambda folder, change: None)
    dflash.convert_dflash(head, target, tmp_path)
    found = ov.Core().read_model(tmp_path / "openvino_model.xml")
    assert not any(map(found.has_rt_info, (["hidden_layers_list"], ["dflash", "block_size"])))
    assert tapped_layers(tmp_path, LAYERS) == TAPS
    opened = open_head(tmp_path, pair / "target", 6)
    assert opened.depth == BLOCK - 1
    states = np.random.default_rng(2).normal(size=(9, model.tap_width)).astype(np.float32)
    window = HeadWindow(range(9), 0, [0], states)
    assert np.allclose(opened.forward([window])[0], model.forward([window])[0], atol=0.02)


@pytest.mark.parametrize("name", ["target_layer_ids", "mask_token_id", "block_size"])
def test_what_a_head_says_nowhere_is_not_assumed(pair: Path, tmp_path: Path, name: str) -> None:
    def forget(model: ov.Model) -> None:
        facts = model.get_rt_info("dflash").value
        del facts[name]
        model.set_rt_info(facts, "dflash")

    folder = shutil.copytree(pair / "head", tmp_path / "head")
    rewrite(folder, forget)
    assert tapped_layers(folder, LAYERS) == TAPS
    assert open_head(folder, pair / "target", 6).depth == BLOCK - 1
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.get("dflash_config", {}).pop(name, None)
    config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    message = rf"does not say its {name}: copy this field from .* to .*config\.json"
    with pytest.raises(UnsupportedModel, match=message):
        _ = tapped_layers(folder, LAYERS), open_head(folder, pair / "target", 6)


def drafted(model: DFlashModel, window: HeadWindow) -> np.ndarray:
    """Logits of each token of a block, with other tokens ahead each time."""
    logits, own = model.forward([window])
    rows = [logits[0].copy()]
    for token in range(BLOCK - 2):
        place = window.start + len(window.tokens) + token
        logits, own = model.forward([HeadWindow([token], place, window.blocks, own.copy(), is_own=True)])
        rows.append(logits[0].copy())
    return np.array(rows)


def slowly(target: Any, head: Any, states: np.ndarray, token: int) -> np.ndarray:
    """Logits of each token of the block after `token`: head by head of the attention, in float64, without a cache."""
    import torch

    weights = {name: weight.double() for name, weight in head.state_dict().items()}
    embedding, config = target.get_input_embeddings().weight.double(), head.config
    with torch.no_grad():
        context = norm(torch.tensor(states).double() @ weights["fc.weight"].T, weights["hidden_norm.weight"])
        x = embedding[torch.tensor([token, *[MASK] * (BLOCK - 1)])]
        for layer in range(config.num_hidden_layers):
            prefix = f"layers.{layer}."
            own = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
            normed = norm(x, own["input_layernorm.weight"])
            both, size = torch.cat([context, normed]), config.head_dim
            mixed = []
            for i in range(config.num_attention_heads):
                shared = i // (config.num_attention_heads // config.num_key_value_heads)
                mine, theirs = slice(i * size, (i + 1) * size), slice(shared * size, (shared + 1) * size)
                query = norm(normed @ own["self_attn.q_proj.weight"][mine].T, own["self_attn.q_norm.weight"])
                key = norm(both @ own["self_attn.k_proj.weight"][theirs].T, own["self_attn.k_norm.weight"])
                query, key = turned(query, len(context), config), turned(key, 0, config)
                value = both @ own["self_attn.v_proj.weight"][theirs].T
                mixed.append(torch.softmax(query @ key.T / size**0.5, -1) @ value)
            x = x + torch.cat(mixed, -1) @ own["self_attn.o_proj.weight"].T
            normed = norm(x, own["post_attention_layernorm.weight"])
            gate = torch.nn.functional.silu(normed @ own["mlp.gate_proj.weight"].T)
            x = x + (gate * (normed @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
        return (norm(x[1:], weights["norm.weight"]) @ embedding.T).numpy()


def norm(x: Any, weight: Any) -> Any:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x: Any, begin: int, config: Any) -> Any:
    """Rows of queries or keys, of which the first is at position `begin`, with their rotary embedding."""
    import torch

    half = config.head_dim // 2
    angles = torch.outer(
        torch.arange(begin, begin + len(x)).double(),
        config.rope_parameters["rope_theta"] ** -(torch.arange(half).double() / half),
    )
    left, right = x[:, :half], x[:, half:]
    return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1)


def test_sequences_of_both_kinds_share_a_pass_of_the_head(model: DFlashModel) -> None:
    rng = np.random.default_rng(1)
    states = rng.normal(size=(9, model.tap_width)).astype(np.float32)
    _, own = model.forward([HeadWindow(range(7), 0, [1], states[:7])])
    windows = [
        HeadWindow(range(9), 0, [0], states),
        HeadWindow([5], 7, [1], own.copy(), is_own=True),
        HeadWindow(range(4), 0, [2], states[:4]),
    ]
    together = [each.copy() for each in model.forward(windows)]
    for i, window in enumerate(windows):
        alone = model.forward([replace(window, blocks=[3 + i])])
        for many, one in zip(together, alone, strict=True):
            assert np.allclose(many[i], one[0], atol=1e-4)


def test_the_blocks_of_several_sequences_run_in_one_inference(
    model: DFlashModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of each has been read before. Only one that has much to read runs alone."""
    states = np.random.default_rng(4).normal(size=(60, model.tap_width)).astype(np.float32)
    sizes = (([0, 1], 40, 2), ([2], 0, BLOCK), ([3], 5, BLOCK + 1), ([4], 9, 1))  # blocks, tokens before, rows
    windows, alone = [], []
    for blocks, before, rows in sizes:
        if before:
            model.forward([HeadWindow(range(before), 0, blocks, states[:before])])
        windows.append(HeadWindow(range(rows), before, blocks, states[before : before + rows]))
        alone.append([each.copy() for each in model.forward(windows[-1:])])
    batches: list[int] = []
    infer = model._block.infer
    counting = SimpleNamespace(
        infer=lambda inputs, **options: batches.append(len(inputs["input_ids"])) or infer(inputs, **options)
    )
    monkeypatch.setattr(model, "_block", counting)
    together = model.forward(windows)
    assert batches == [3, 1]
    for i, one in enumerate(alone):
        for many, expected in zip(together, one, strict=True):
            assert np.allclose(many[i], expected[0], atol=1e-4)
    monkeypatch.undo()
    for window in windows:
        end = window.start + len(window.tokens)
        after = HeadWindow([1], end, window.blocks, states[end : end + 1])
        follows = model.forward([after])[0].copy()
        model.forward([window])
        assert np.allclose(follows, model.forward([after])[0], atol=1e-4)  # so the cache held what it should


@pytest.mark.slow
def test_a_pair_with_a_head_answers_alike_in_every_mode(pair: Path) -> None:
    """Also where more tokens are asked for than a block drafts."""
    pipeline = LLMPipeline(pair, cache_tokens=1024, exact=True)
    assert pipeline.modes == ("off", "lookup", "suffix", "recycling", "head", "chained", "auto")
    for options in ({}, {"do_sample": True, "rng_seed": 3}):
        answers = [
            pipeline.generate(
                ["area = width", "The quick"], mode=mode, max_new_tokens=30, ignore_eos=True,
                num_assistant_tokens=BLOCK + 2, **options,
            ).generations
            for mode in pipeline.modes
        ]  # fmt: skip
        for each in zip(*answers, strict=True):
            assert len({answer.token_ids for answer in each}) == 1
        assert all(answer.stats.drafted > 0 for answer in answers[pipeline.modes.index("head")])


@pytest.mark.slow
def test_the_text_is_openvino_genais_and_as_many_drafts_are_accepted(deep: Any, head: Any, tmp_path: Path) -> None:
    """Of a head that has learnt a part of the answer; without rounding in the caches."""
    import torch

    prompt = torch.tensor([make_tokenizer().encode(PROMPT)])
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    (tokens,) = deep.float().generate(prompt, max_new_tokens=NEW_TOKENS, **options).tolist()
    learn(head, deep, tokens, range(prompt.shape[1], len(tokens) - BLOCK))
    trained = save_head(tmp_path / "head", head)
    target = save(tmp_path / "target", deep.half(), make_tokenizer())
    fp16 = Compression("fp16")
    made = export_pair(target, trained, tmp_path / "pair", target_compression=fp16, draft_compression=fp16)

    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "num_assistant_tokens": BLOCK - 1, "ignore_eos": True}
    options["apply_chat_template"] = False
    text, accepted = GenaiWithHead(made, **EXACT).generate(PROMPT, **options)
    (ours,) = LLMPipeline(made, exact=False, **EXACT).generate([PROMPT], mode="head", **options).generations
    assert list(ours.token_ids) == tokens[prompt.shape[1] :]
    assert ours.text == text
    assert ours.stats.accepted == accepted > NEW_TOKENS / 4


def learn(head: Any, target: Any, tokens: Sequence[int], places: Sequence[int]) -> None:
    """Train the head on the blocks of a text that begin at `places`."""
    import torch

    rng, ids = np.random.default_rng(0), torch.tensor([tokens])
    with torch.no_grad():
        outputs = target.float()(ids, output_hidden_states=True).hidden_states
    states, embedding = torch.cat([outputs[tap + 1] for tap in TAPS], -1), target.get_input_embeddings().weight.detach()
    optimizer = torch.optim.Adam(head.parameters(), 2e-3)
    for _ in range(STEPS):
        loss = torch.zeros(())
        for place in rng.choice(places, 4):
            block = embedding[torch.tensor([[tokens[place], *[MASK] * (BLOCK - 1)]])]
            positions = torch.arange(place + BLOCK)[None]
            output = head(block, states[:, :place], positions, use_cache=False).last_hidden_state[0]
            wanted = ids[0, place + 1 : place + BLOCK]
            loss = loss + torch.nn.functional.cross_entropy(output @ embedding.T, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_head_of_another_target_or_that_does_not_describe_itself_is_refused(
    target: Path, deep_target: Path, head: Any, tmp_path: Path
) -> None:
    checkpoint = save_head(tmp_path / "head", head)
    with pytest.raises(UnsupportedModel, match="wants hidden states of layer 2, and its target has 2: choose a DFlash"):
        export_pair(target, checkpoint, tmp_path / "pair")
    silent = save_head(tmp_path / "silent", head, dflash_config={"target_layer_ids": list(TAPS)})
    with pytest.raises(UnsupportedModel, match="does not say its block_size, or its target_layer_ids"):
        export_pair(deep_target, silent, tmp_path / "pair")
    del head.layers[1].mlp.up_proj  # the last use of it in this file
    incomplete = save_head(tmp_path / "incomplete", head)
    with pytest.raises(ConversionFailed, match=r"not those of a DFlash head: layers\.1\.mlp\.up_proj\.weight"):
        export_pair(deep_target, incomplete, tmp_path / "pair")
    assert not (tmp_path / "pair").exists()
