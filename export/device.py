"""The device that a target is exported for, and the weights that it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

from outrider.pipelines.errors import InvalidOption

from .compression import Compression, WeightFormat

Device = Literal["CPU", "GPU", "NPU"]

# OpenVINO 2026.3's page "OpenVINO GenAI on NPU" asks for these, and recommends groups for up to 4 or 5 billion weights
# and one scale per row (-1) for more. What "Weight Compression" says of GPUs it says of CPUs as well.
NPU_TAKES: dict[str, tuple[Any, ...]] = {
    "weights": ("int4",),
    "symmetric": (True,),
    "group_size": (128, -1),
    "ratio": (1.0,),
}
MOST_IN_GROUPS = 5_000_000_000


def default_weights(device: Device) -> WeightFormat:
    return "int4" if device == "NPU" else "int8"


def check_weights(device: Device, compression: Compression) -> None:
    """Raises InvalidOption for a target that the device does not take, and for a device that does not exist."""
    if device not in (known := get_args(Device)):
        raise InvalidOption(f"Pairs are not exported for {device!r}: choose {', '.join(known)}.")
    if device != "NPU":
        return
    for name, value in {"weights": compression.weights, **compression.settings}.items():
        if value not in NPU_TAKES[name]:
            possible = " or ".join(map(str, NPU_TAKES[name]))
            raise InvalidOption(
                f"{name}={value} is not possible for an NPU, which takes {possible}: leave it out, or export for "
                "another device."
            )


def grouped(device: Device, compression: Compression, num_weights: int) -> Compression:
    """The compression with the group size that suits the device and a target of `num_weights` weights, if none is
    given."""
    if device == "NPU" and compression.group_size is None and num_weights > MOST_IN_GROUPS:
        return replace(compression, group_size=-1)
    return compression
