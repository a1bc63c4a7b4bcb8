"""Converts a head of any kind that is known."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint import Checkpoint
from .eagle3 import convert_eagle3
from .medusa import convert_medusa

CONVERTERS = {"eagle3": convert_eagle3, "medusa": convert_medusa, "hydra": convert_medusa}  # by `Checkpoint.head_kind`


def convert_head(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
    """Write the head's IR and configuration to `folder`. What it shares with its target is left out.

    Raises UnsupportedModel for a head of another target, and ConversionFailed.
    """
    assert head.head_kind is not None
    CONVERTERS[head.head_kind](head, target, folder)
