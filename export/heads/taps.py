"""Which layers of its target a head reads, by its configuration or by trying."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.pipelines import LLMPipeline
from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.heads.head_kind import LAYERS
from outrider.pipelines.model.pair import num_layers

from ..checkpoint import Checkpoint
from .ir import rewrite

PROMPTS = (
    "Write a function that reverses a list, and explain it.",
    "What is the capital of France, and what is it known for?",
    "def area(width, height):\n",
)
LAST_STATE = {"medusa", "hydra"}  # kinds that read what the projection reads
NAMED_BY_IR = {"dflash", "mtp"}  # kinds whose conversion notes the layers
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"  # in a configuration, or in "eagle_config" there
NUM_ANSWERS, NEW_TOKENS, DRAFT_TOKENS = 8, 48, 3  # of one answer to each prompt, chance would decide
CACHE_TOKENS = 4096


def tap_candidates(head: Checkpoint, target: Checkpoint) -> list[tuple[int, ...]]:
    """The layers of the target, counted from 0, whose outputs the head may read: those that its configuration names, or
    else those of EAGLE's code and those that OpenVINO GenAI takes.

    EAGLE names the layers whose inputs are read, GenAI those whose outputs are. Raises UnsupportedModel.
    """
    config = head.config()
    layers = num_layers(target.folder)
    if head.head_kind in LAST_STATE:
        return [(layers,)]
    if "eagle_taps" in config:
        if beyond := [tap for tap in config["eagle_taps"] if not 0 <= tap <= layers]:
            raise UnsupportedModel(
                f"{head.source} wants hidden states of layer {beyond[0]}, and {target.source} has {layers} layers: "
                "choose the head that was made for this model."
            )
        return [tuple(config["eagle_taps"])]
    usual = [2, layers // 2, layers - 3]
    named = config.get(LAYER_IDS) or (config.get("eagle_config") or {}).get(LAYER_IDS) or usual
    if len(named) != len(usual):
        raise UnsupportedModel(
            f"{head.source} reads {len(named)} layers of its target, {named}, and those that can be converted read "
            f"{len(usual)}: choose another head, or a draft model for this target."
        )
    candidates = [tuple(layer - 1 for layer in named), tuple(named)]
    fitting = [taps for taps in candidates if len({*taps}) == len(taps) and all(0 <= tap < layers for tap in taps)]
    if not fitting:
        which = f"reads layers {named} of its target, which"
        if named == usual:
            which = f"does not say which layers of its target it reads, and the usual ones, {named},"
        raise UnsupportedModel(
            f"{head.source} {which} do not exist in a model of {layers} layers: choose the head that was made for this "
            f'model, or copy {head.folder} to a folder of your own, add "eagle_taps", a list of layers from 0 up, to '
            "config.json there, and give that folder as --head."
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
    rewrite(folder, lambda model: model.set_rt_info(list(taps), [LAYERS]))


def _acceptance(pair: Path) -> float:
    """The share of a head's drafts that the target accepts in sampled answers.

    Greedy answers of a small model run in circles, which a head predicts whatever it reads.
    """
    pipeline = LLMPipeline(pair, cache_tokens=CACHE_TOKENS, exact=False)
    options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "num_assistant_tokens": DRAFT_TOKENS, "mode": "head"}
    sampling = {"do_sample": True, "temperature": 1.0, "rng_seed": 0, "num_return_sequences": NUM_ANSWERS}
    stats = [each.stats for each in pipeline.generate(list(PROMPTS), **options, **sampling).generations]
    return sum(each.accepted for each in stats) / max(1, sum(each.drafted for each in stats))
