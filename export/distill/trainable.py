"""TrainableHead: what the loss and the evaluation need of a head, and the base of heads that share parts of the
target."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from .taps import layers_of, tapped

SHARED = ("embedding.", "projection.")  # weights of the target, which neither learn nor are stored


class TrainableHead(Protocol):
    """A head that proposes several tokens after each token of a text.

    taps: the layers of the target whose outputs it reads, counted from 0; the number of layers stands for what the
        target's projection reads, the last one's, normed.
    most_steps: drafts in a row that there is something to learn from, at most; None: any number.
    """

    taps: tuple[int, ...]
    most_steps: int | None

    @property
    def vocabulary(self) -> torch.Tensor:
        """The target ids that it can propose, ascending, int64."""
        ...

    def drafts(
        self, ids: torch.Tensor, features: torch.Tensor, rows: torch.Tensor, steps: int
    ) -> Iterator[torch.Tensor]:
        """The states of each step, (sequences, rows, width), from which `project` makes logits.

        Step k proposes, in row i, token i + 2 + k, and has read the tokens up to i + 1 + k.

        ids: token ids padded on the right, int64, (sequences, tokens).
        features: the outputs of the tapped layers for each token, concatenated, (sequences, tokens, taps * width).
        rows: where drafts begin, int64, (sequences, rows), each at most tokens - 2. For steps beyond the end of the
            text, the last token is read again: leave their states out.
        """
        ...

    def project(self, states: torch.Tensor) -> torch.Tensor:
        """Logits over `vocabulary` of states, (..., width)."""
        ...

    def save(self, folder: Path) -> None:
        """Write `config.json` and float16 weights, without those of the target."""
        ...


class SharingHead(nn.Module):
    """A head, float32 on the device of its target, that shares its embedding and its projection, both of which it
    freezes."""

    architecture: str
    file = "model.safetensors"
    most_steps: int | None = None

    def __init__(self, target: PreTrainedModel) -> None:
        super().__init__()
        self.embedding, self.projection = target.get_input_embeddings(), target.get_output_embeddings()
        for shared in (self.embedding, self.projection):
            shared.requires_grad_(False)
        self.taps: tuple[int, ...] = (len(layers_of(target)),)
        of = target.config.get_text_config()
        self.width, self.size = of.hidden_size, of.vocab_size
        self._check_projection(target)

    def _check_projection(self, target: PreTrainedModel) -> None:
        """Raises ValueError for a target that scales or caps what its projection makes, which no head learns yet."""
        ids = torch.arange(min(8, self.size), device=target.device)[None]
        with torch.no_grad(), tapped(target.eval(), self.taps) as states:
            logits = target(input_ids=ids, use_cache=False).logits
            differing = (self.project(states[0]) - logits).abs().max()
        if differing > 0.01 * logits.abs().max():
            raise ValueError(f"{type(target).__name__} scales or caps its logits")

    @property
    def vocabulary(self) -> torch.Tensor:
        return torch.arange(self.size, device=self.projection.weight.device)

    def project(self, states: torch.Tensor) -> torch.Tensor:
        return self.projection(states.to(self.projection.weight.dtype))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the target's embedding, float32."""
        return functional.embedding(ids, self.embedding.weight).float()

    def own_weights(self) -> dict[str, torch.Tensor]:
        """The head's own weights by the names that they have in a checkpoint."""
        return {name: weight for name, weight in self.state_dict().items() if not name.startswith(SHARED)}

    def described(self) -> dict[str, Any]:
        """What config.json says in addition to the architecture and the target's widths."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: weight.to(torch.float16).contiguous() for name, weight in self.own_weights().items()}
        save_file(weights, folder / self.file, metadata={"format": "pt"})
        sizes = {"hidden_size": self.width, "vocab_size": self.size, "dtype": "float16"}
        config = {"architectures": [self.architecture], **sizes, **self.described()}
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def read(self, folder: Path) -> None:
        """Take the weights in a folder that `save` wrote. Raises ValueError for weights of another head."""
        from safetensors.torch import load_file

        weights, own = load_file(folder / self.file), self.own_weights()
        differing = [
            name for name in sorted({*weights, *own}) if name not in weights or name not in own
            or weights[name].shape != own[name].shape
        ]  # fmt: skip
        if differing:
            raise ValueError(f"{folder} is a head for another target: {', '.join(differing[:3])} differ")
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(weights[name])


def shape_of(target: PreTrainedModel) -> Any:
    """The configuration of a decoder layer like Llama's with the widths of `target`. Raises ValueError for a target
    with layers of another kind."""
    from transformers import LlamaConfig

    of = target.config.get_text_config()
    needed = ("intermediate_size", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps")
    rope = _rope_of(of)
    if not all(hasattr(of, name) for name in needed) or rope is None:
        raise ValueError(f"{type(target).__name__} does not have decoder layers like Llama's")
    return LlamaConfig(
        vocab_size=of.vocab_size,
        hidden_size=of.hidden_size,
        intermediate_size=of.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=of.num_attention_heads,
        num_key_value_heads=of.num_key_value_heads,
        head_dim=getattr(of, "head_dim", None),
        max_position_embeddings=of.max_position_embeddings,
        rms_norm_eps=of.rms_norm_eps,
        rope_parameters=rope,
        initializer_range=of.initializer_range,
        bos_token_id=of.bos_token_id,
        eos_token_id=of.eos_token_id,
        pad_token_id=of.pad_token_id,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )


def _rope_of(config: Any) -> dict[str, Any] | None:
    """The rotary parameters of a target, those of its layers that see everything if others have their own. A Llama
    turns all units, so scales that are made for a part of them are left out. None for a target without any."""
    rope = getattr(config, "rope_parameters", None)
    rope = rope.get("full_attention", rope) if isinstance(rope, dict) else {}
    if rope.get("rope_theta") is None:
        return None
    if rope.get("partial_rotary_factor", 1) != 1:
        return {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    return dict(rope)
