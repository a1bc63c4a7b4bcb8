"""EAGLE-3 heads (arXiv 2503.01840), as checkpoints of them are saved, to OpenVINO's IR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.pipelines.model.heads.embedding import without_embedding

from ..checkpoint import Checkpoint
from ..convert import TASK
from ..errors import ConversionFailed
from ..quiet import quiet
from .ir import rewrite
from .sizes import check_sizes

NOT_NEEDED = {"embed_tokens.weight", "t2d", "d2t"}  # the target's embedding is used; without d2t the ids are the same


def convert_eagle3(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
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
    rewrite(folder, without_embedding)


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
    check_sizes(
        head,
        target,
        ("tokens in its vocabulary", of_target.vocab_size, config.vocab_size),
        ("numbers in a hidden state", of_target.hidden_size, width),
        ("numbers in a token's embedding", of_target.hidden_size, config.hidden_size),
    )
