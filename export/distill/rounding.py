"""Weights rounded to int4 while they are trained, so that little is lost when the export stores them so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.utils import parametrize

LOWEST, HIGHEST = -8, 7  # of the numbers that int4 stores
SMALLEST_GROUP = 32  # of the export, where a row is not a multiple of the group that was asked for
PROJECTION = "lm_head"  # stored as int8


def rounded(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """The weights that symmetric int4 stores of (rows, columns): in groups of `group_size` of a row the largest number
    is LOWEST times a scale, and all others are the nearest multiples of it. `group_size` divides the columns."""
    groups = weight.unflatten(-1, (-1, group_size))
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scale = largest / LOWEST
    scale = torch.where(scale == 0, 1.0, scale)
    return ((groups / scale).round().clamp(LOWEST, HIGHEST) * scale).flatten(-2)


def fitting_group(columns: int, group_size: int) -> int | None:
    """The group size with which the export stores rows of this many columns, as `Compression` says; None: as int8."""
    if group_size == -1:
        return columns
    if columns % group_size == 0:
        return group_size
    power = columns & -columns  # the largest power of two that divides them
    return power if power >= SMALLEST_GROUP else None


class _Rounded(nn.Module):
    """Rounds a weight, whose gradient passes unchanged (straight-through estimator, arXiv 1308.3432)."""

    def __init__(self, group_size: int) -> None:
        super().__init__()
        self.group_size = group_size

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (rounded(weight, self.group_size) - weight).detach()


@contextmanager
def rounding(model: nn.Module, group_size: int | None) -> Iterator[None]:
    """Within the block, `model` computes with rounded weights in its linear layers that learn, except the projection to
    the vocabulary. The unrounded weights are what is trained, and what remains after the block. None rounds nothing."""
    layers = []
    for name, layer in model.named_modules() if group_size is not None else ():
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad and not name.endswith(PROJECTION):
            assert group_size is not None
            group = fitting_group(layer.in_features, group_size)
            if group is not None:
                parametrize.register_parametrization(layer, "weight", _Rounded(group))
                layers.append(layer)
    try:
        yield
    finally:
        for layer in layers:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
