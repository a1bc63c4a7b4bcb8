"""Converts a head of any known kind."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint import Checkpoint
from .dflash import convert_dflash
from .eagle3 import convert_eagle3
from .exit_head import convert_exit
from .medusa import convert_medusa
from .mtp import convert_mtp

CONVERTERS = {  # by `Checkpoint.head_kind`
    "dflash": convert_dflash,
    "eagle3": convert_eagle3,
    "exit": convert_exit,
    "hydra": convert_medusa,
    "medusa": convert_medusa,
    "mtp": convert_mtp,
}


def convert_head(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
    """Write the head's IR and configuration to `folder`. What it shares with its target is left out.

    Raises UnsupportedModel for a head of another target, and ConversionFailed.
    """
    assert head.head_kind is not None
    CONVERTERS[head.head_kind](head, target, folder)
