"""EAGLE-3 heads (arXiv 2503.01840), as checkpoints of them are saved, to OpenVINO's IR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.pipelines.model.heads.embedding import without_embedding

from ..checkpoint import Checkpoint
from ..quiet import quiet
from .ir import rewrite
from .optimum_intel import converting, language_config, load_weights, write_ir
from .sizes import check_sizes
from .weights import read_weights

NOT_NEEDED = {"embed_tokens.weight", "t2d", "d2t"}  # the target's embedding is used; without d2t the ids are the same


def convert_eagle3(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
    """Write the head's IR and configuration to `folder`, as optimum-intel builds them, without an embedding.

    Raises UnsupportedModel for a head of another target, and ConversionFailed.
    """
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
    from transformers import AutoConfig

    class Eagle3(LlamaEagle3ForCausalLM):
        """A head that optimum-intel takes for a model of transformers, without loading its class from a file."""

    with quiet():
        of_target, config = language_config(target), AutoConfig.from_pretrained(head.folder)
        width = getattr(config, "target_hidden_size", config.hidden_size)
        check_sizes(
            head,
            target,
            ("tokens in its vocabulary", of_target.vocab_size, config.vocab_size),
            ("numbers in a hidden state", of_target.hidden_size, width),
            ("numbers in a token's embedding", of_target.hidden_size, config.hidden_size),
        )
        with converting(head):
            model = Eagle3(config)
            load_weights(model.model, _weights(head), "an EAGLE-3 head", NOT_NEEDED)
            write_ir(model, folder)
    rewrite(folder, without_embedding)


def _weights(head: Checkpoint) -> dict[str, Any]:
    """The weights without the embedding, under the head's own names, without the prefix "model." that some checkpoints
    have."""
    weights = {name.removeprefix("model."): weight for name, weight in read_weights(head.folder).items()}
    return {name: weight for name, weight in weights.items() if name != "embed_tokens.weight"}
