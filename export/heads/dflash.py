"""DFlash heads, which draft a block in one pass, to OpenVINO's IR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.heads.dflash_model import FACTS, LAYERS, LEAST_SIZE, MASK, SIZE

from ..checkpoint import Checkpoint
from ..quiet import quiet
from .ir import rewrite
from .optimum_intel import converting, language_config, load_weights, write_ir
from .sizes import check_sizes
from .weights import read_weights


def convert_dflash(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
    """Write the head's IR and configuration to `folder`, as optimum-intel builds them, without the embedding and the
    projection of the target.

    Raises UnsupportedModel for a head of another target or one that does not describe itself, and ConversionFailed.
    """
    from optimum.exporters.openvino.model_patcher import Qwen3DFlashForCausalLM
    from transformers import AutoConfig

    class DFlash(Qwen3DFlashForCausalLM):
        """A head that optimum-intel takes for a model of transformers, without loading its class from a file."""

    with quiet():
        of_target, config = language_config(target), AutoConfig.from_pretrained(head.folder)
        check_sizes(
            head,
            target,
            ("tokens in its vocabulary", of_target.vocab_size, config.vocab_size),
            ("numbers in a hidden state", of_target.hidden_size, config.hidden_size),
        )
        size = _size(head, config, of_target.num_hidden_layers)
        with converting(head):
            load_weights(model := DFlash(config), _weights(head), "a DFlash head")
            write_ir(model, folder)
    rewrite(folder, lambda model: model.set_rt_info(str(size), [FACTS, SIZE]))


def _size(head: Checkpoint, config: Any, num_layers: int) -> int:
    """The size of the head's blocks. Raises UnsupportedModel for one that cannot be converted for this target."""
    facts = getattr(config, "dflash_config", None) or {}
    layers, size = facts.get(LAYERS) or (), getattr(config, SIZE, facts.get(SIZE))
    if config.model_type != "qwen3":
        problem = f"has layers like those of {config.model_type}, and optimum-intel converts those of qwen3"
    elif not layers or facts.get(MASK) is None or not isinstance(size, int) or size < LEAST_SIZE:
        problem = f"does not say its {SIZE}, or its {LAYERS} and {MASK} in dflash_config"
    elif beyond := [layer for layer in layers if not 0 <= layer < num_layers]:
        problem = f"wants hidden states of layer {beyond[0]}, and its target has {num_layers}"
    else:
        return size
    raise UnsupportedModel(f"{head.source} {problem}: choose a DFlash head that was made for this model.")


def _weights(head: Checkpoint) -> dict[str, Any]:
    """The head's own weights, under their names without the prefix "model." that some checkpoints have."""
    weights = {name.removeprefix("model."): weight for name, weight in read_weights(head.folder).items()}
    return {name: weight for name, weight in weights.items() if not name.startswith(("embed_tokens.", "lm_head."))}
