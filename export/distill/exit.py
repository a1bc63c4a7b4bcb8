"""Early-exit heads: an adapter after the first layers of the target, then the target's projection.

As in Kangaroo (arXiv 2404.18911) the lower layers of the target draft, so that verification can take over what they
computed. This adapter has no attention, so it needs no cache: a norm, a feed-forward block, and a last norm. What it
proposes after a token depends only on the lower layers, so there is one step to learn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from .taps import layers_of, norm_weight
from .trainable import SharingHead, shape_of


class Exit(SharingHead):
    """Weights: `adapter.norm`, `adapter.{gate,up,down}_proj`, `norm`.

    layer: how many layers run below it; None for a third of them. Raises ValueError for more than the target has.
    """

    architecture = "ExitHead"
    most_steps = 1

    def __init__(self, target: PreTrainedModel, layer: int | None = None, seed: int = 0) -> None:
        super().__init__(target)
        count = len(layers_of(target))
        self.exit_layer = max(1, count // 3) if layer is None else layer
        if not 1 <= self.exit_layer < count:
            raise ValueError(f"an exit comes after 1 to {count - 1} of {count} layers, not {self.exit_layer}")
        self.taps = (self.exit_layer - 1,)
        torch.manual_seed(seed)
        config = shape_of(target)
        self.config = config
        config.mlp_bias = False
        self.adapter = LlamaMLP(config)
        self.adapter.norm = LlamaRMSNorm(self.width, config.rms_norm_eps)
        self.norm = LlamaRMSNorm(self.width, config.rms_norm_eps)
        with torch.no_grad():
            self.adapter.down_proj.weight.zero_()
            self.norm.weight.copy_(norm_weight(target))
        self.to(target.device)

    def drafts(
        self, ids: torch.Tensor, features: torch.Tensor, rows: torch.Tensor, steps: int
    ) -> Iterator[torch.Tensor]:
        for step in range(steps):
            places = (rows + 1 + step).clamp(max=ids.shape[1] - 1)
            state = features.gather(1, places[..., None].expand(-1, -1, self.width))
            yield self.norm(state + self.adapter(self.adapter.norm(state)))

    def described(self) -> dict[str, Any]:
        return {
            "model_type": "llama",
            "exit_layer": self.exit_layer,
            "num_hidden_layers": 1,
            "intermediate_size": self.config.intermediate_size,
            "hidden_act": self.config.hidden_act,
            "rms_norm_eps": self.config.rms_norm_eps,
        }


def load_exit(folder: Path, target: PreTrainedModel) -> Exit:
    """The head in a folder that `Exit.save` wrote. Raises ValueError if it was made for another target."""
    head = Exit(target, json.loads((folder / "config.json").read_text(encoding="utf-8"))["exit_layer"])
    head.read(folder)
    return head.eval()
