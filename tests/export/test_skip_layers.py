"""A target is exported to draft by itself, and its drafts are those of the layers that it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.export import Compression, export_pair
from outrider.export.command import _layers
from outrider.export.skip_layers import choose_layers, expected_speedup
from outrider.pipelines import LLMPipeline, Pair
from outrider.pipelines.errors import InvalidOption, UnsupportedModel
from outrider.pipelines.model.pair import Skipping
from outrider.pipelines.model.split_model import ShortModel, SplitModel
from outrider.pipelines.model.target import Window

from .conftest import make_llama, make_tokenizer, save

LAYERS, WIDTH, INNER, VOCABULARY = 4, 64, 96, 300
EXIT = 2
FP16 = Compression("fp16")


@pytest.fixture(scope="module")
def llama() -> Any:
    return make_llama(WIDTH, LAYERS, seed=1)


@pytest.fixture(scope="module")
def checkpoint(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("checkpoints") / "target", llama, make_tokenizer())


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    import torch

    torch.manual_seed(5)
    shapes = {"gate_proj": (INNER, WIDTH), "up_proj": (INNER, WIDTH), "down_proj": (WIDTH, INNER)}
    norms = {f"{name}.weight": 1 + torch.rand(WIDTH) for name in ("adapter.norm", "norm")}
    return norms | {f"adapter.{name}.weight": torch.randn(shape) / 8 for name, shape in shapes.items()}


def save_exit(folder: Path, weights: dict[str, Any], **changes: Any) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    save_file({name: weight.half() for name, weight in weights.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["ExitHead"], "model_type": "llama", "exit_layer": EXIT, "num_hidden_layers": 1,
        "hidden_size": WIDTH, "intermediate_size": INNER, "rms_norm_eps": 1e-6, "vocab_size": VOCABULARY,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def with_exit(checkpoint: Path, weights: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    head, out = (tmp_path_factory.mktemp(name) / name for name in ("exit", "pair"))
    return export_pair(
        checkpoint, None, out, target_compression=FP16, draft_compression=FP16, head=save_exit(head, weights)
    )


@pytest.mark.slow
def test_layers_are_chosen_by_trying_and_drafts_skip_them(checkpoint: Path, tmp_path: Path) -> None:
    said: list[str] = []
    pair = export_pair(checkpoint, None, tmp_path / "pair", skip_layers="auto", announce=said.append)
    about = json.loads((pair / "pair.json").read_text())["models"]["target"]
    assert about["expected_speedup_by_skipped_layers"].keys() >= {"1", "2", "3"}
    best = max(about["expected_speedup_by_skipped_layers"].items(), key=lambda tried: tried[1])
    assert (" ".join(map(str, about["skip_layers"])) == best[0]) if best[1] > 1 else "skip_layers" not in about
    assert "Trying which layers drafts can skip" in said
    assert ("skip" in LLMPipeline(pair, exact=True).modes) == ("skip_layers" in about)
    found = choose_layers(pair / "target", Pair.open(pair).properties)
    assert found.items() <= about.items()


@pytest.mark.slow
def test_layers_that_are_named_are_skipped(checkpoint: Path, tmp_path: Path) -> None:
    pair = export_pair(checkpoint, None, tmp_path / "pair", skip_layers=[2, 1])
    metadata = json.loads((pair / "pair.json").read_text())
    assert metadata["models"]["target"]["skip_layers"] == [1, 2]
    assert metadata["checks"]["round_trip"]["skip"]["drafted"] > 0  # with the same tokens as without drafts
    assert Pair.open(pair).skipping == Skipping((1, 2))
    metadata["models"]["target"] |= {"skip_layers": [], "exit_layer": 3}
    (pair / "pair.json").write_text(json.dumps(metadata))
    assert Pair.open(pair).skipping == Skipping((3,), is_exit=True)


def test_an_exit_head_writes_what_it_does_in_torch(with_exit: Path, llama: Any, weights: dict[str, Any]) -> None:
    import torch
    from torch.nn.functional import rms_norm, silu

    pair = Pair.open(with_exit)
    assert pair.skipping == Skipping((2, 3), is_exit=True, head=with_exit / "exit")
    model = SplitModel(pair.target, 4, pair.skipping, {"KV_CACHE_PRECISION": "f32"}, taps=(LAYERS,))
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 20).tolist()
    (logits,) = model.draft([Window(tokens, 0, [0], len(tokens))])
    norms = {name: weights[f"{name}.weight"] for name in ("adapter.norm", "norm")}
    gate, up, down = (weights[f"adapter.{name}_proj.weight"] for name in ("gate", "up", "down"))
    with torch.no_grad():
        own = llama.float()(torch.tensor([tokens]), output_hidden_states=True)
        states = own.hidden_states[EXIT][0]
        read = rms_norm(states, (WIDTH,), norms["adapter.norm"], 1e-6)
        adapted = states + (silu(read @ gate.T) * (read @ up.T)) @ down.T
        expected = rms_norm(adapted, (WIDTH,), norms["norm"], 1e-6) @ llama.lm_head.weight.T
    assert np.allclose(logits, expected, atol=0.05)
    (logits,) = model.forward([Window(tokens, 0, [0], len(tokens))])
    assert np.allclose(logits, own.logits[0], atol=0.05)
    assert np.allclose(model.hidden_states()[0], own.hidden_states[-1][0], atol=0.05)
    assert model.num_taken_over == len(tokens)
    assert ShortModel(model).weight_bytes == (with_exit / "exit" / "openvino_model.bin").stat().st_size
    assert json.loads((with_exit / "pair.json").read_text())["checks"]["round_trip"]["exit"]["drafted"] > 0


def test_an_exit_head_outside_of_its_pair_is_refused_with_how_it_is_used(with_exit: Path) -> None:
    message = r"exit is the head of an early exit, .* open that pair, or give the head's checkpoint to `outrider export"
    with pytest.raises(UnsupportedModel, match=message):
        LLMPipeline(with_exit, cache_tokens=1024, head=with_exit / "exit")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"skip_layers": [0]}, UnsupportedModel, "Drafts cannot skip layer 0 of .*choose layers from 1 to 3"),
        ({"exit_layer": 4}, UnsupportedModel, "Drafts cannot skip layer 4"),
        ({"skip_layers": "auto", "exit_layer": 2}, InvalidOption, "--skip-layers and --exit-layer do not go together"),
    ],
    ids=str,
)
def test_what_the_target_cannot_skip_is_refused(checkpoint, tmp_path, options, error, message) -> None:
    with pytest.raises(error, match=message):
        export_pair(checkpoint, None, tmp_path / "pair", **options)
    assert not (tmp_path / "pair").exists()


@pytest.mark.parametrize(("name", "value"), [("exit_layer", 4), ("hidden_size", 32), ("vocab_size", 9)])
def test_an_exit_head_of_another_target_is_refused(checkpoint, weights, tmp_path, name, value) -> None:
    head = save_exit(tmp_path / "exit", weights, **{name: value})
    with pytest.raises(UnsupportedModel, match="choose the head that was made for this model"):
        export_pair(checkpoint, None, tmp_path / "pair", target_compression=FP16, head=head)


def test_the_expected_speedup_is_that_of_the_best_length() -> None:
    assert expected_speedup([0.9, 0.8, 0.1], 0.5) == pytest.approx(2.7 / 2)
    assert expected_speedup([0.4, 0.3], 0.5) == 1


def test_layers_are_given_as_numbers() -> None:
    assert (_layers("auto"), _layers("none"), _layers("5,6")) == ("auto", [], [5, 6])
    with pytest.raises(InvalidOption, match="give auto, none, or numbers"):
        _layers("some")
