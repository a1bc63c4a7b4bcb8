"""Which of a target's layers a head reads, and their outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel


def default_taps(layers: int) -> tuple[int, int, int]:
    """The layers, counted from 0, whose outputs an EAGLE-3 head of a target with `layers` layers reads.

    From eight layers on those of EAGLE (github.com/SafeAILab/EAGLE, `modeling_llama_kv.py`): 1, L/2 - 1 and L - 4. With
    fewer these would coincide or be out of order, so an early one, the middle one and the last one are taken.
    Raises ValueError for a target of fewer than three layers.
    """
    if layers < 3:
        raise ValueError(f"a head reads three layers, and the target has {layers}")
    if layers >= 8:
        return 1, layers // 2 - 1, layers - 4
    return int(layers > 4), layers // 2, layers - 1


def check_taps(taps: Sequence[int], layers: int) -> tuple[int, int, int]:
    """`taps` as they are, if they are three layers of a target with `layers` layers in ascending order.

    Raises ValueError otherwise.
    """
    if len(taps) != 3 or not 0 <= taps[0] < taps[1] < taps[2] < layers:
        raise ValueError(f"taps must be three ascending layers of 0..{layers - 1}, not {tuple(taps)}")
    return taps[0], taps[1], taps[2]


@contextmanager
def tapped(target: PreTrainedModel, taps: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    """A list that holds the outputs of the layers `taps`, each (sequences, tokens, width), after each forward pass.

    These are the residual streams; the number of layers stands for what the projection reads, after the final norm.
    """
    outputs: list[torch.Tensor] = []
    layers = [*layers_of(target), norm_of(target)]

    def keep(layer: nn.Module, arguments: Any, output: Any) -> None:
        if layer is layers[taps[0]]:
            outputs.clear()
        outputs.append(output[0] if isinstance(output, tuple) else output)

    hooks = [layers[tap].register_forward_hook(keep) for tap in taps]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def layers_of(target: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a target. Raises ValueError for a model that does not keep them as Llama does."""
    layers = getattr(target.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ValueError(f"{type(target).__name__} does not keep its decoder layers as Llama does")
    return layers


def norm_weight(target: PreTrainedModel) -> torch.Tensor:
    """What the norm after the last layer multiplies with: its weight, and one more in Gemma's."""
    norm = norm_of(target)
    with torch.no_grad():
        more = (norm(torch.ones_like(norm.weight)) - norm.weight).mean().round()
    return norm.weight + more


def norm_of(target: PreTrainedModel) -> nn.Module:
    """The norm after the last layer. Raises ValueError for a model that does not keep it as Llama does."""
    norm = getattr(target.get_decoder(), "norm", None)
    if not isinstance(norm, nn.Module):
        raise ValueError(f"{type(target).__name__} does not keep its last norm as Llama does")
    return norm
