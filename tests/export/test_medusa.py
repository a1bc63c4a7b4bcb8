"""Exported Medusa and Hydra heads compute what their checkpoints do, draft for their target, and for no other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.export import Compression, export_pair
from outrider.export.checkpoint import find_checkpoint
from outrider.export.convert import convert
from outrider.export.errors import ConversionFailed
from outrider.export.heads.convert_head import convert_head
from outrider.models.errors import NoSuchModel
from outrider.pipelines import LLMPipeline
from outrider.pipelines.errors import BrokenPair, InvalidOption, UnsupportedModel
from outrider.pipelines.model.heads.head_kind import open_head, tapped_layers
from outrider.pipelines.model.heads.head_model import HeadWindow
from outrider.pipelines.model.heads.medusa_model import MedusaModel

WIDTH, VOCABULARY, HEADS = 128, 300, 3
HALF = Compression("fp16")
KINDS = ("medusa", "medusa with projections", "hydra")


def make_weights(kind: str, width: int = WIDTH, vocabulary: int = VOCABULARY, blocks: int = 2) -> dict[str, Any]:
    import torch

    torch.manual_seed(len(kind))
    weights = {}
    for head in range(HEADS):
        if kind == "hydra":
            weights[f"{head}.fc.weight"] = torch.randn(width, (2 + head) * width) * width**-0.5
        for block in range(blocks):
            weights[f"{head}.{block}.linear.weight"] = torch.randn(width, width) * width**-0.5
            weights[f"{head}.{block}.linear.bias"] = torch.randn(width)
        if kind == "medusa with projections":
            weights[f"{head}.{blocks}.weight"] = torch.randn(vocabulary, width) * width**-0.5
    return weights


def save_heads(folder: Path, kind: str, weights: dict[str, Any]) -> Path:
    """Medusa's with projections as the published ones are: pickled, without an architecture, with too few heads."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    name = kind.split()[0]
    if kind == "medusa with projections":
        torch.save(weights, folder / "medusa_lm_head.pt")
    else:
        save_file(weights, folder / f"{name}_lm_head.safetensors")
    config = {f"{name}_num_heads": 2, f"{name}_num_layers": 2, "base_model_name_or_path": "target"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {kind: save_heads(root / kind.replace(" ", "-"), kind, make_weights(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def pairs(target: Path, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One export, and the other heads in the place of its own."""
    root = tmp_path_factory.mktemp("pairs")
    whole = export_pair(
        target, checkpoints[KINDS[0]], root / "0", target_compression=HALF, draft_compression=Compression("int8")
    )
    found = {}
    for kind in KINDS:
        pair = shutil.copytree(whole, root / kind.replace(" ", "-"))
        shutil.rmtree(pair / "head")
        convert_head(*(find_checkpoint(str(each), False, print) for each in (checkpoints[kind], target)), pair / "head")
        found[kind] = pair
    return found | {"int8": whole}


def slowly(weights: dict[str, Any], model: Any, state: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """Logits of the head that drafts after `tokens`, the first of which the target wrote from `state`."""
    import torch

    head = len(tokens) - 1
    row = torch.tensor(state)
    if f"{head}.fc.weight" in weights:
        read = [row, *(model.model.embed_tokens.weight[token].float() for token in tokens)]
        row = weights[f"{head}.fc.weight"] @ torch.cat(read)
    for block in range(2):
        row = row + torch.nn.functional.silu(
            weights[f"{head}.{block}.linear.weight"] @ row + weights[f"{head}.{block}.linear.bias"]
        )
    projection = weights.get(f"{head}.2.weight", model.lm_head.weight.float())
    return (projection @ row).detach().numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_each_head_drafts_what_its_checkpoint_does_and_rows_of_all_depths_share_a_pass(
    pairs: dict[str, Path], target: Path, kind: str
) -> None:
    from transformers import AutoModelForCausalLM

    torch_model = AutoModelForCausalLM.from_pretrained(target)
    weights = make_weights(kind)
    model = open_head(pairs[kind] / "head", pairs[kind] / "target", 4)
    assert isinstance(model, MedusaModel)
    assert (model.depth, model.reach, model.vocabulary.tolist()) == (HEADS, 1, list(range(VOCABULARY)))
    assert tapped_layers(pairs[kind] / "head", 2) == (2,)
    rng = np.random.default_rng(0)
    texts = [([int(token)], rng.normal(size=(4, WIDTH)).astype(np.float32)) for token in (5, 299, 17)]
    waiting = [HeadWindow([1, 2, 3, *tokens], 0, [0], states) for tokens, states in texts]
    behind: list[HeadWindow | None] = [None] * 3
    drafted: list[list[int]] = [list(tokens) for tokens, _ in texts]
    for step in range(HEADS + 2):  # the second text begins one pass later, the third two
        running = [i for i in range(3) if 0 <= step - i < HEADS]
        windows = [behind[i] or waiting[i] for i in running]
        logits, own = (each.copy() for each in model.forward(windows))
        for i, found, state in zip(running, logits, own, strict=True):
            expected = slowly(weights, torch_model, texts[i][1][-1], drafted[i])
            assert np.allclose(found, expected, atol=0.05, rtol=0.01)
            drafted[i].append(int(rng.integers(VOCABULARY)))
            behind[i] = HeadWindow(drafted[i][-1:], 4 + step, [0], state[np.newaxis], is_own=True)
    assert [len(each) for each in drafted] == [1 + HEADS] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_projection_counts_once_whether_the_heads_share_it_or_have_their_own(
    pairs: dict[str, Path], kind: str
) -> None:
    model = open_head(pairs[kind] / "head", pairs[kind] / "target", 4)
    shared = 0 if kind == "medusa with projections" else VOCABULARY * WIDTH * 2
    assert model.weight_bytes == (pairs[kind] / "head" / "openvino_model.bin").stat().st_size + shared


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "int8"])
def test_a_pair_with_these_heads_answers_alike_in_every_mode(pairs: dict[str, Path], kind: str) -> None:
    pipeline = LLMPipeline(pairs[kind], cache_tokens=1024, exact=True)
    assert pipeline.modes == ("off", "lookup", "suffix", "recycling", "head", "chained", "auto")
    for options in ({}, {"do_sample": True, "rng_seed": 3}):
        texts = set()
        for mode in pipeline.modes:
            shared: dict[str, Any] = {"mode": mode, "max_new_tokens": 16, "ignore_eos": True, **options}
            found = pipeline.generate(
                ["area = width", "The quick", "def"], num_assistant_tokens=6, **shared
            ).generations
            texts.add(tuple(tuple(each.token_ids) for each in found))
            if mode == "head":
                assert found[0].stats.drafted > 0
        assert len(texts) == 1


def test_what_the_export_says_of_heads(pairs: dict[str, Path]) -> None:
    facts = json.loads((pairs["int8"] / "pair.json").read_text(encoding="utf-8"))
    head = facts["models"]["head"]
    assert (head["kind"], head["architecture"], head["taps"], head["weights"]) == ("medusa", "MedusaModel", [2], "int8")
    assert facts["checks"]["round_trip"]["head"]["drafted"] > 0


def test_another_head_takes_the_place_of_a_pairs_own(pairs: dict[str, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"mode": "head", "max_new_tokens": 8, "ignore_eos": True}
    expected = LLMPipeline(pairs["hydra"], cache_tokens=1024).generate("area", **options).generations[0]
    pipeline = LLMPipeline(pairs["int8"], cache_tokens=1024, head=pairs["hydra"] / "head")
    found = pipeline.generate("area", **options).generations[0]
    assert found.token_ids == expected.token_ids
    assert pipeline.pair.head == pairs["hydra"] / "head"
    with pytest.raises(BrokenPair, match=r"is not an exported head, since it lacks openvino_model\.xml"):
        LLMPipeline(pairs["int8"], head=tmp_path)
    with pytest.raises(InvalidOption, match="drafts for a target on the CPU: leave it out on NPU"):
        LLMPipeline(pairs["int8"], "NPU", head=pairs["hydra"] / "head")


def test_heads_of_another_target_are_refused(
    target: Path, draft: Path, checkpoints: dict[str, Path], pairs: dict[str, Path], tmp_path: Path
) -> None:
    narrow = find_checkpoint(str(draft), False, print)
    convert(narrow, tmp_path / "narrow", half=True)
    for kind in KINDS:
        with pytest.raises(UnsupportedModel, match=r"with 128 numbers in a hidden state, and .* has 64"):
            convert_head(find_checkpoint(str(checkpoints[kind]), False, print), narrow, tmp_path / "head")
        with pytest.raises(UnsupportedModel, match=r"have 128 numbers, and this target's have 64"):
            open_head(pairs[kind] / "head", tmp_path / "narrow", 4)
    wider = save_heads(tmp_path / "wider", KINDS[1], make_weights(KINDS[1], vocabulary=310))
    with pytest.raises(UnsupportedModel, match=r"with 310 tokens in its vocabulary, and .* has 300"):
        convert_head(*(find_checkpoint(str(each), False, print) for each in (wider, target)), tmp_path / "head")
    assert not (tmp_path / "head").exists()


@pytest.mark.parametrize(
    ("kind", "lost", "said"),
    [
        ("medusa", "1.0.linear.bias", "0.linear.bias"),
        ("medusa with projections", "1.2.weight", "for some heads only"),
        ("hydra", "2.1.linear.weight", "2.1.linear.bias is not known"),
    ],
)
def test_weights_that_are_not_those_of_such_heads_are_refused(
    target: Path, tmp_path: Path, kind: str, lost: str, said: str
) -> None:
    weights = make_weights(kind)
    del weights[lost]
    head = save_heads(tmp_path / "head", kind, weights)
    with pytest.raises(ConversionFailed, match=said):
        convert_head(*(find_checkpoint(str(each), False, print) for each in (head, target)), tmp_path / "ir")
    assert not (tmp_path / "ir").exists()


@pytest.mark.parametrize("kept", [None, 0, 3000], ids=["pointer", "empty", "cut off"])
def test_a_damaged_file_of_weights_is_refused_by_its_name(
    target: Path, checkpoints: dict[str, Path], tmp_path: Path, kept: int | None
) -> None:
    head = shutil.copytree(checkpoints[KINDS[1]], tmp_path / "head")
    file, pointer = head / "medusa_lm_head.pt", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n"
    file.write_bytes(pointer if kept is None else file.read_bytes()[:kept])
    with pytest.raises(NoSuchModel, match=r"medusa_lm_head\.pt is damaged or incomplete"):
        convert_head(*(find_checkpoint(str(each), False, print) for each in (head, target)), tmp_path / "ir")
