"""Head: converts an EAGLE-3 head, and finds out which layers of its target it reads."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from outrider.pipelines import LLMPipeline
from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.eagle3_model import LAYERS, without_embedding
from outrider.pipelines.model.pair import num_layers

from .checkpoint import Checkpoint
from .convert import MODEL, TASK
from .errors import ConversionFailed
from .quiet import quiet

NOT_NEEDED = {"embed_tokens.weight", "t2d", "d2t"}  # the target's embedding is used; without d2t the ids are the same
PROMPTS = (
    "Write a function that reverses a list, and explain it.",
    "What is the capital of France, and what is it known for?",
    "def area(width, height):\n",
)
NEW_TOKENS, DRAFT_TOKENS = 48, 3
CACHE_TOKENS = 1024


def convert_head(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
    """Write the head's IR and configuration to `folder`, as optimum-intel builds them, without an embedding.

    Raises UnsupportedModel for a head of another target, and ConversionFailed.
    """
    from optimum.exporters.openvino.convert import export_from_model
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
    from optimum.intel import OVConfig
    from transformers import AutoConfig

    class Eagle3(LlamaEagle3ForCausalLM):
        """One that optimum-intel takes for a model of transformers, without loading its class from a file."""

    with quiet():
        config, of_target = (AutoConfig.from_pretrained(each.folder) for each in (head, target))
        _check_same_target(head, config, target, of_target.get_text_config())
        try:
            model = Eagle3(config).eval()
            weights = _weights(head)
            missing, unknown = model.model.load_state_dict(weights, strict=False)
            if lacking := sorted({*missing} - NOT_NEEDED) + sorted(unknown):
                raise ValueError(f"its weights are not those of an EAGLE-3 head: {', '.join(lacking[:3])}")
            export_from_model(model.float(), folder, task=TASK, stateful=True, ov_config=OVConfig())
        except Exception as error:
            raise ConversionFailed(
                f"optimum-intel cannot convert the head {head.source} ({type(error).__name__}: {error}): choose "
                "another one, or a newer optimum-intel."
            ) from error
    for file in folder.glob("*tok*"):  # a head has no tokenizer, and optimum-intel makes one up
        file.unlink()
    _rewrite(folder, without_embedding)


def tap_candidates(head: Checkpoint, target: Path) -> list[tuple[int, ...]]:
    """The layers of the target, counted from 0, whose outputs the head may read: those that its configuration names, or
    else those of EAGLE's code and those that OpenVINO GenAI takes.

    EAGLE names the layers whose inputs are read, GenAI those whose outputs are. Raises UnsupportedModel.
    """
    config: dict[str, Any] = json.loads((head.folder / "config.json").read_text(encoding="utf-8"))
    layers = num_layers(target)
    if "eagle_taps" in config:
        return [tuple(config["eagle_taps"])]
    usual = [2, layers // 2, layers - 3]
    named = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or usual
    candidates = [tuple(layer - 1 for layer in named), tuple(named)]
    fitting = [taps for taps in candidates if len({*taps}) == len(taps) and all(0 <= tap < layers for tap in taps)]
    if not fitting:
        raise UnsupportedModel(
            f"{head.source} does not say which layers of its target it reads, and the usual ones, {named}, do not "
            f'exist in a model of {layers} layers: add "eagle_taps", a list of layers from 0 up, to its config.json.'
        )
    return fitting


def choose_taps(pair: Path, candidates: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """Note in the head of a pair the candidate with which most of its drafts are accepted.

    Returns the layers, and the share of accepted tokens by candidate if there are several.
    """
    shares: dict[tuple[int, ...], float] = {}
    for taps in candidates if len(candidates) > 1 else ():
        set_taps(pair / "head", taps)
        shares[taps] = _acceptance(pair)
    chosen = max(shares, key=lambda taps: shares[taps], default=candidates[0])
    set_taps(pair / "head", chosen)
    tried = {" ".join(map(str, taps)): round(share, 4) for taps, share in shares.items()}
    return {"taps": list(chosen), **({"acceptance_by_taps": tried} if tried else {})}


def set_taps(folder: Path, taps: Sequence[int]) -> None:
    """Note in a head's IR which layers it reads, where OpenVINO GenAI looks for them."""
    _rewrite(folder, lambda model: model.set_rt_info(list(taps), [LAYERS]))


def _acceptance(pair: Path) -> float:
    """The share of a head's drafts that the target accepts in greedy answers."""
    pipeline = LLMPipeline(pair, cache_tokens=CACHE_TOKENS, exact=False)
    options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "num_assistant_tokens": DRAFT_TOKENS, "mode": "head"}
    stats = [generation.stats for generation in pipeline.generate(list(PROMPTS), **options).generations]
    return sum(each.accepted for each in stats) / max(1, sum(each.drafted for each in stats))


def _weights(head: Checkpoint) -> dict[str, Any]:
    """Of all files, under the names that they have in the head, which some checkpoints put behind "model."."""
    from safetensors.torch import load_file
    from torch import load

    weights: dict[str, Any] = {}
    for file in sorted(head.folder.glob("*.safetensors")) or sorted(head.folder.glob("pytorch_model*.bin")):
        read = load_file(file) if file.suffix == ".safetensors" else load(file, map_location="cpu", weights_only=True)
        weights |= {name.removeprefix("model."): weight for name, weight in read.items()}
    return {name: weight for name, weight in weights.items() if name != "embed_tokens.weight"}


def _check_same_target(head: Checkpoint, config: Any, target: Checkpoint, of_target: Any) -> None:
    width = getattr(config, "target_hidden_size", config.hidden_size)
    for name, has, wants in (
        ("tokens in its vocabulary", of_target.vocab_size, config.vocab_size),
        ("numbers in a hidden state", of_target.hidden_size, width),
        ("numbers in a token's embedding", of_target.hidden_size, config.hidden_size),
    ):
        if has != wants:
            raise UnsupportedModel(
                f"{head.source} is a head for a model with {wants} {name}, and {target.source} has {has}: choose the "
                "head that was made for this model."
            )


def _rewrite(folder: Path, change: Any) -> None:
    path, changed = folder / MODEL, folder / f"changed_{MODEL}"
    model = ov.Core().read_model(path)
    change(model)
    ov.save_model(model, changed, compress_to_fp16=False)
    del model  # it maps the files that are replaced next
    gc.collect()
    for suffix in (".xml", ".bin"):
        changed.with_suffix(suffix).replace(path.with_suffix(suffix))
