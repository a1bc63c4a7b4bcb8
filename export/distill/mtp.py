"""MTP heads: multi-token prediction as in DeepSeek-V3 (arXiv 2412.19437), one decoder layer used again for each draft.

In its row i it reads the embedding of token i + 1 and the target's last hidden state of token i, normed as the
projection reads it, and proposes token i + 2; the next draft reads the head's own normed state in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from .taps import norm_weight
from .trainable import SharingHead, shape_of
from .unrolled import unroll


class Mtp(SharingHead):
    """Weights: `enorm`, `hnorm`, `eh_proj` (embedding first), `layer` as in a Llama, `norm`."""

    architecture = "MtpHead"

    def __init__(self, target: PreTrainedModel, seed: int = 0) -> None:
        super().__init__(target)
        torch.manual_seed(seed)
        config, of = shape_of(target), target.config.get_text_config()
        self.config = config
        self.enorm, self.hnorm, self.norm = (LlamaRMSNorm(self.width, of.rms_norm_eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * self.width, self.width, bias=False)
        self.layer = LlamaDecoderLayer(config, 0)
        self.rotary = LlamaRotaryEmbedding(config)
        for module in (self.eh_proj, *self.layer.modules()):
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.width**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        with torch.no_grad():
            self.norm.weight.copy_(norm_weight(target))
        self.to(target.device)

    def drafts(
        self, ids: torch.Tensor, features: torch.Tensor, rows: torch.Tensor, steps: int
    ) -> Iterator[torch.Tensor]:
        return unroll(self, ids, features, rows, steps)

    def begin(self, features: torch.Tensor) -> torch.Tensor:
        return features

    def advance(
        self, ids: torch.Tensor, state: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        read = self.eh_proj(torch.cat([self.enorm(self.embed(ids)), self.hnorm(state)], -1))
        turned = self.rotary(read, position_ids=positions)
        return self.norm(self.layer(read, attention_mask=mask, past_key_values=cache, position_embeddings=turned))

    def finish(self, state: torch.Tensor) -> torch.Tensor:
        return state

    def described(self) -> dict[str, Any]:
        names = (
            "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "hidden_act", "rms_norm_eps",
            "rope_parameters", "max_position_embeddings", "num_hidden_layers",
        )  # fmt: skip
        config = self.config.to_dict()
        return {"model_type": "llama", **{name: config[name] for name in names}}


def load_mtp(folder: Path, target: PreTrainedModel) -> Mtp:
    """The head in a folder that `Mtp.save` wrote. Raises ValueError if it was made for another target."""
    head = Mtp(target)
    head.read(folder)
    return head.eval()
