"""Medusa (arXiv 2401.10774) and Hydra (arXiv 2402.05109) heads.

Head k makes draft k from the hidden state from which the target itself chose the token before all drafts. Medusa's
heads read nothing else; Hydra's also read the embeddings of that token and of the drafts since. Residual blocks follow,
and then the target's projection. A head begins as if it were the target's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from .trainable import SharingHead

HEADS = 3
BLOCKS = {"medusa": 1, "hydra": 2}  # residual blocks of a head, by kind


class Medusa(SharingHead):
    """A set of heads. The weights are named as in Medusa's published checkpoints, `{head}.{block}.linear`; the map of
    state and embeddings to the width of a state, which Hydra's have before the blocks, is `{head}.fc`."""

    def __init__(self, target: PreTrainedModel, kind: str = "medusa", heads: int = HEADS, source: str = "") -> None:
        super().__init__(target)
        self.kind, self.source = kind, source
        self.architecture = {"medusa": "MedusaModel", "hydra": "HydraModel"}[kind]
        self.file = f"{kind}_lm_head.safetensors"
        self.most_steps = heads
        tokens = range(1, heads + 1) if kind == "hydra" else [0] * heads
        self.heads = nn.ModuleList(_Head(self.width, BLOCKS[kind], each) for each in tokens).to(target.device)

    def drafts(
        self, ids: torch.Tensor, features: torch.Tensor, rows: torch.Tensor, steps: int
    ) -> Iterator[torch.Tensor]:
        state = features.gather(1, rows[..., None].expand(-1, -1, self.width))
        read: list[torch.Tensor] = []
        for step in range(min(steps, len(self.heads))):
            if self.kind == "hydra":
                read.append(self.embed(ids.gather(1, (rows + 1 + step).clamp(max=ids.shape[1] - 1))))
            yield self.heads[step](state, read)

    def own_weights(self) -> dict[str, torch.Tensor]:
        return {name.removeprefix("heads."): weight for name, weight in super().own_weights().items()}

    def described(self) -> dict[str, Any]:
        return {
            "model_type": self.kind,
            "base_model_name_or_path": self.source,
            f"{self.kind}_num_heads": len(self.heads),
            f"{self.kind}_num_layers": BLOCKS[self.kind],
        }


def load_medusa(folder: Path, target: PreTrainedModel) -> Medusa:
    """The heads in a folder that `Medusa.save` wrote. Raises ValueError if they were made for another target."""
    import json

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = config["model_type"]
    heads = Medusa(target, kind, config[f"{kind}_num_heads"], config["base_model_name_or_path"])
    heads.read(folder)
    return heads.eval()


class _Head(nn.Module):
    def __init__(self, width: int, blocks: int, tokens: int) -> None:
        super().__init__()
        self.blocks, self.tokens = blocks, tokens
        if tokens:
            self.fc = nn.Linear((1 + tokens) * width, width, bias=False)
            with torch.no_grad():
                self.fc.weight.zero_()[:, :width] = torch.eye(width)
        for block in range(blocks):
            self.add_module(str(block), _Block(width))

    def forward(self, state: torch.Tensor, read: list[torch.Tensor]) -> torch.Tensor:
        if self.tokens:
            state = self.fc(torch.cat([state, *read[: self.tokens]], -1))
        for block in range(self.blocks):
            state = self.get_submodule(str(block))(state)
        return state


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return state + functional.silu(self.linear(state))
