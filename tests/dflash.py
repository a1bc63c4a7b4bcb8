"""DFlash heads with random weights, as checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TAPS, MASK, BLOCK = (0, 2, 4), 7, 6


def random_head(target: Any, seed: int = 3) -> Any:
    """A head for a target with this configuration."""
    import torch
    from optimum.exporters.openvino.model_patcher import Qwen3DFlashForCausalLM
    from transformers import Qwen3Config

    torch.manual_seed(seed)
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    described = {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(TAPS)}, "block_size": BLOCK}
    sizes = {name: getattr(target, name) for name in names}
    config = Qwen3Config(**sizes, **described, num_hidden_layers=2, initializer_range=0.1, tie_word_embeddings=False)
    head = Qwen3DFlashForCausalLM(config).eval()
    for name, weight in head.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(weight, 1.0, 0.1)
    return head


def save_head(folder: Path, head: Any, **changed: Any) -> Path:
    """As the heads on the hub are saved: without an embedding and a projection."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    save_file({name: weight.contiguous() for name, weight in head.state_dict().items()}, folder / "model.safetensors")
    described = {**head.config.to_dict(), "architectures": ["DFlashDraftModel"], **changed}
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder
