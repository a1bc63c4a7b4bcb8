"""EAGLE-3 heads (arXiv 2503.01840), as checkpoints of them are saved, to OpenVINO's IR."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.heads.embedding import without_embedding

from ..checkpoint import Checkpoint
from ..quiet import quiet
from .ir import rewrite
from .optimum_intel import converting, language_config, load_weights, write_ir
from .sizes import check_sizes
from .weights import read_weights

NOT_NEEDED = {"embed_tokens.weight", "t2d"}  # the target's embedding is used, and tokens are mapped by d2t
# Values in the configuration, or in its "eagle_config", with which a head computes something else than optimum-intel's.
NOT_CONVERTED = (
    ("norm_before_fc", True, "norms the states of its target before it projects them"),
    ("fc_norm", True, "norms each state of its target before it projects them"),
    ("norm_output", True, "drafts on from its states after the last norm"),
    ("use_aux_hidden_state", False, "reads the last hidden state of its target only"),
    ("layer_types", ["sliding_attention"], "reads the latest tokens only"),
    ("modal_type", "VLM", "drafts for a target of images and text"),
    ("target_model_type", "qwen2_vl", "drafts for a target of images and text"),
    ("target_model_type", "qwen3_vl", "drafts for a target of images and text"),
)


def convert_eagle3(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
    """Write the head's IR and configuration to `folder`, as optimum-intel builds them, without an embedding.

    Raises UnsupportedModel for a head of another target or of a kind that is not converted, and ConversionFailed.
    """
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
    from transformers import AutoConfig

    class Eagle3(LlamaEagle3ForCausalLM):
        """A head that optimum-intel takes for a model of transformers, without loading its class from a file."""

    with quiet():
        of_target, config = language_config(target), AutoConfig.from_pretrained(head.folder)
        described = _described(head, config)
        config.target_hidden_size = described.get("target_hidden_size") or config.hidden_size
        config.draft_vocab_size = described.get("draft_vocab_size") or config.vocab_size
        check_sizes(
            head,
            target,
            ("tokens in its vocabulary", of_target.vocab_size, config.vocab_size),
            ("numbers in a hidden state", of_target.hidden_size, config.target_hidden_size),
            ("numbers in a token's embedding", of_target.hidden_size, config.hidden_size),
        )
        optional = NOT_NEEDED | ({"d2t"} if config.draft_vocab_size == config.vocab_size else set())
        with converting(head):
            model = Eagle3(config)
            load_weights(model.model, _weights(head), "an EAGLE-3 head", optional)
            if described.get("norm_before_residual"):
                model.model.midlayer = _normed_first(model.model.midlayer)
            write_ir(model, folder)
    rewrite(folder, without_embedding)


def _described(head: Checkpoint, config: Any) -> dict[str, Any]:
    """The fields of a head's configuration, and of "eagle_config" in it. Raises UnsupportedModel."""
    described = {**(getattr(config, "eagle_config", None) or {}), **config.to_dict()}
    for name, value, meaning in NOT_CONVERTED:
        if described.get(name) == value:
            raise UnsupportedModel(
                f"{head.source} {meaning} ({name}: {json.dumps(value)}), which cannot be converted yet: choose another "
                "head, or a draft model for this target."
            )
    return described


def _normed_first(layer: Any) -> Any:
    """A layer with its norm of hidden states ahead, so that the residual is normed, too."""
    import torch

    class NormedFirst(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, layer.hidden_norm = layer.hidden_norm, torch.nn.Identity()
            self.layer = layer

        def forward(self, hidden_states: Any, **others: Any) -> Any:
            return self.layer(hidden_states=self.norm(hidden_states), **others)

    return NormedFirst()


def _weights(head: Checkpoint) -> dict[str, Any]:
    """The weights without the embedding, under the head's own names: some checkpoints prefix them with "model.", or
    name the layer as vLLM does."""
    weights = {name.removeprefix("model."): weight for name, weight in read_weights(head.folder).items()}
    weights.pop("embed_tokens.weight", None)
    return {re.sub(r"^layers\.0\.", "midlayer.", name): weight for name, weight in weights.items()}
