"""Reading: how far a model has got with a prompt before it writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """`read` of the prompt's `total` tokens are behind the model, those included that its cache held already."""

    read: int
    total: int
