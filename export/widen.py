"""Widen and deepen a checkpoint without changing the function that it computes.

A small trained pair has the acceptance rates of a real one but not the cost of its passes. Padded with zeros to a real
pair's shape it has both, so speeds measured on it mean something. The logits are those of the original up to rounding.
Quantization loses less than on the original: the original weights are spread evenly among zeros, so that fewer of them
share a scale, and symmetric quantization keeps a zero exactly zero.

    python -m outrider.export.widen CHECKPOINT OUT --hidden-size 1536 --layers 24 --heads 24 --kv-heads 4 \
        --intermediate-size 8960
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from outrider.pipelines.errors import InvalidOption

from .checkpoint import require_weights


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a Llama model; the size of an attention head does not change."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int

    @classmethod
    def of(cls, config: LlamaConfig) -> Shape:
        return cls(
            config.hidden_size,
            config.num_hidden_layers,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.intermediate_size,
        )

    @property
    def group(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads


def widened(model: LlamaForCausalLM, shape: Shape) -> LlamaForCausalLM:
    """A model of `shape` with the logits of `model`. Raises InvalidOption for a shape that cannot hold it.

    New channels of the residual stream are zero and stay so. RMSNorm divides by the root of the mean square, which is
    now taken over more numbers, so its weight is scaled by sqrt(old / new) and its epsilon by old / new. The norms of a
    new layer are zero, so it adds nothing. Its matrices are random, because a runtime stores equal constants once, and
    layers that share their weights would cost less than those of a real model.
    """
    old, config = Shape.of(model.config), model.config
    _require_room(old, shape)
    head_dim = config.head_dim
    padding = old.hidden_size / shape.hidden_size
    sizes = {
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size,
        "head_dim": head_dim,
        "rms_norm_eps": config.rms_norm_eps * padding,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        wide = LlamaForCausalLM(LlamaConfig(**{**config.to_dict(), **sizes})).to(model.dtype)
    stream, axes = _axes_of(old, shape, head_dim)
    tokens = _Axis(torch.arange(config.vocab_size), config.vocab_size)
    axes |= {"embed_tokens": (tokens, stream), "lm_head": (tokens, stream)}
    originals = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in wide.named_parameters():
            is_norm = weight.ndim == 1
            if is_norm or name in originals:
                weight.zero_()
            if name not in originals:
                continue
            if is_norm:
                weight[stream.places] = originals[name] * padding**0.5
            else:
                rows, columns = axes[name.split(".")[-2]]
                weight[rows.places[:, None], columns.places] = originals[name]
    wide.generation_config = model.generation_config
    return wide


def widened_head(
    weights: Mapping[str, torch.Tensor], config: LlamaConfig, shape: Shape
) -> dict[str, torch.Tensor]:
    """The weights of a head for the target that `widened` makes in `shape`, with the results of the original head.

    weights: of an EAGLE-3, MTP, Medusa, Hydra or exit head, under the names in its checkpoint, without an embedding.
    config: the sizes of the head, or of its target where the head has none.

    Raises InvalidOption for a shape that cannot hold it.
    """
    old = Shape.of(config)
    _require_room(old, replace(shape, num_layers=old.num_layers))
    stream, axes = _axes_of(old, shape, config.head_dim)
    padding = old.hidden_size / shape.hidden_size
    wide: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        if weight.ndim == 2:
            rows, columns = axes.get(name.split(".")[-2], (stream, stream))
            if len(weight) != len(rows.places):
                rows = _Axis(torch.arange(len(weight)), len(weight))  # tokens
            columns = columns.repeated(weight.shape[1] // len(columns.places))
            wide[name] = weight.new_zeros(rows.room, columns.room)
            wide[name][rows.places[:, None], columns.places] = weight
        elif weight.is_floating_point():
            wide[name] = weight.new_zeros(stream.room)
            wide[name][stream.places] = weight if name.endswith("bias") else weight * padding**0.5
        else:  # which tokens it knows
            wide[name] = weight
    return wide


def widened_config(config: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """The configuration of a head that was widened to `shape`."""
    sizes = {
        "hidden_size": shape.hidden_size,
        "target_hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
    }
    wide = {name: sizes.get(name, value) for name, value in config.items()}
    if "rms_norm_eps" in config:
        wide["rms_norm_eps"] = config["rms_norm_eps"] * config["hidden_size"] / shape.hidden_size
    return wide


def widen_checkpoint(source: Path, out: Path, shape: Shape) -> int:
    """Widen the checkpoint in `source` into the new folder `out`, with its tokenizer; returns the number of parameters.
    """
    if out.exists():
        raise InvalidOption(f"{out} exists already: choose another folder, or remove it.")
    model, loading = LlamaForCausalLM.from_pretrained(source, output_loading_info=True)
    require_weights(str(source), loading["missing_keys"])
    wide = widened(model, shape)
    wide.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)
    return wide.num_parameters()


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where along one axis of a wider matrix the old rows or columns go, and its length."""

    places: torch.Tensor
    room: int

    def repeated(self, times: int) -> _Axis:
        """The axis `times` times in a row, as for a hidden state joined with an embedding."""
        return _Axis(torch.cat([i * self.room + self.places for i in range(times)]), times * self.room)


def _axes_of(old: Shape, new: Shape, head_dim: int) -> tuple[_Axis, dict[str, tuple[_Axis, _Axis]]]:
    """The axis of the residual stream, and rows and columns of the matrices of a layer."""
    stream = _Axis(_spread(old.hidden_size, new.hidden_size), new.hidden_size)
    units = _Axis(_spread(old.intermediate_size, new.intermediate_size), new.intermediate_size)
    kv_heads, in_group = _spread(old.num_kv_heads, new.num_kv_heads), _spread(old.group, new.group)
    kv = _Axis(_places(kv_heads, head_dim), new.num_kv_heads * head_dim)
    query_heads = (kv_heads[:, None] * new.group + in_group).flatten()
    query = _Axis(_places(query_heads, head_dim), new.num_heads * head_dim)
    return stream, {
        "q_proj": (query, stream),
        "k_proj": (kv, stream),
        "v_proj": (kv, stream),
        "o_proj": (stream, query),
        "gate_proj": (units, stream),
        "up_proj": (units, stream),
        "down_proj": (stream, units),
    }


def _spread(count: int, room: int) -> torch.Tensor:
    """`count` indices in 0..room - 1, ascending and evenly spaced."""
    return torch.arange(count) * room // count


def _places(heads: torch.Tensor, head_dim: int) -> torch.Tensor:
    """The rows of the given heads, in order."""
    return (heads[:, None] * head_dim + torch.arange(head_dim)).flatten()


def _require_room(old: Shape, new: Shape) -> None:
    for name in Shape.__slots__:
        if getattr(new, name) < getattr(old, name):
            raise InvalidOption(f"{name}={getattr(new, name)} is less than the model's own {getattr(old, name)}.")
    if new.hidden_size % new.num_heads:
        raise InvalidOption(f"hidden_size={new.hidden_size} is no multiple of num_heads={new.num_heads}.")
    if new.num_heads % new.num_kv_heads or new.group < old.group:
        raise InvalidOption(
            f"num_heads={new.num_heads} with num_kv_heads={new.num_kv_heads} cannot hold groups of {old.group} query "
            "heads: take a multiple of num_kv_heads that is at least that large."
        )


def main(
    checkpoint: Path,
    out: Path,
    hidden_size: Annotated[int, typer.Option(help="Width of the residual stream.")],
    layers: Annotated[int, typer.Option(help="Number of layers.")],
    heads: Annotated[int, typer.Option(help="Query heads.")],
    kv_heads: Annotated[int, typer.Option(help="Key-value heads.")],
    intermediate_size: Annotated[int, typer.Option(help="Width of the feed-forward layers.")],
) -> None:
    """Widen and deepen the Llama checkpoint in the folder CHECKPOINT into the folder OUT. Its output stays the same."""
    count = widen_checkpoint(checkpoint, out, Shape(hidden_size, layers, heads, kv_heads, intermediate_size))
    typer.echo(f"Made {out}: {count / 1e6:,.0f} million parameters.")


if __name__ == "__main__":
    typer.run(main)
