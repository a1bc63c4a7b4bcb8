"""The kinds of heads that share embedding and projection with their target: making and loading one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from transformers import PreTrainedModel

from .exit import Exit, load_exit
from .medusa import HEADS, Medusa, load_medusa
from .mtp import Mtp, load_mtp
from .trainable import SharingHead

SharingKind = Literal["medusa", "hydra", "mtp", "exit"]
LOADERS = {"MedusaModel": load_medusa, "HydraModel": load_medusa, "MtpHead": load_mtp, "ExitHead": load_exit}


def make_head(
    kind: SharingKind,
    target: PreTrainedModel,
    source: str,
    seed: int = 0,
    heads: int | None = None,
    exit_layer: int | None = None,
) -> SharingHead:
    """A head to be trained. source: the target's name, for published formats that hold it. Raises ValueError."""
    if kind == "mtp":
        return Mtp(target, seed)
    if kind == "exit":
        return Exit(target, exit_layer, seed)
    return Medusa(target, kind, heads or HEADS, source)


def load_sharing_head(folder: Path, target: PreTrainedModel) -> SharingHead:
    """The head in a folder that `SharingHead.save` wrote. Raises ValueError if it was made for another target."""
    (architecture,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    return LOADERS[architecture](folder, target)
