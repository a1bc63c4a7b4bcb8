"""How much of a prompt the model has processed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`read` of the prompt's `total` tokens are in the key-value cache, including those that were there before."""

    read: int
    total: int
