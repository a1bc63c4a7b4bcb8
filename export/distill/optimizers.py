"""Optimizers: Muon (kellerjordan.github.io/posts/muon) for the matrices of layers, AdamW for all other weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Optimizers:
    """Both optimizers as one. `rate` is the peak learning rate of AdamW, `matrix_rate` that of Muon."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], others: Iterable[nn.Parameter], matrix_rate: float, rate: float
    ) -> None:
        muon, adamw = list(matrices), list(others)
        self._all: list[torch.optim.Optimizer] = []
        if muon:
            self._all.append(torch.optim.Muon(muon, lr=matrix_rate, weight_decay=0.02, momentum=0.95))
        if adamw:
            self._all.append(torch.optim.AdamW(adamw, lr=rate, betas=(0.9, 0.95), weight_decay=0.0))
        for group in self._groups():
            group["peak"] = group["lr"]

    def step(self, share: float) -> None:
        """Update the weights at `share` of the peak learning rates, and forget the gradients."""
        for group in self._groups():
            group["lr"] = group["peak"] * share
        for optimizer in self._all:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self._all]

    def restore(self, state: list[dict[str, Any]]) -> None:
        for optimizer, values in zip(self._all, state, strict=True):
            optimizer.load_state_dict(values)

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._all for group in optimizer.param_groups]
