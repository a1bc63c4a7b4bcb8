"""The weights of a head's checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_weights(folder: Path, prefix: str = "") -> dict[str, Any]:
    """The tensors of all files whose names begin with `prefix`, by the rest of the name."""
    from safetensors import safe_open
    from torch import load

    weights: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            weights |= {name: tensors.get_tensor(name) for name in tensors.keys() if name.startswith(prefix)}  # noqa: SIM118  no mapping
    if not weights:
        for file in sorted(folder.glob("pytorch_model*.bin")):
            read = load(file, map_location="cpu", weights_only=True)
            weights |= {name: weight for name, weight in read.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): weight for name, weight in weights.items()}
