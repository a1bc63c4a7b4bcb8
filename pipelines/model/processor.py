"""What OpenVINO may use of the processor, and what has to be said where a part of it is hidden.

oneDNN, which computes OpenVINO's matrix products, can be kept to fewer instructions than the processor has, to see what
a lesser one would do: ONEDNN_MAX_CPU_ISA=AVX2, for example. OpenVINO itself asks the processor all the same, and would
use bf16 or quantize activations where oneDNN then has no kernel for it. Its own kernels, those of attention among them,
do not follow the variable either.
"""

from __future__ import annotations

import os

import openvino as ov

PRECISION = "INFERENCE_PRECISION_HINT"
GROUP_SIZE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"  # activations that share a scale; 0: they are not quantized
WITHOUT_VNNI = frozenset({"AVX2"})
WITHOUT_BF16 = frozenset({"AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"})


def instruction_limit() -> str | None:
    """The set of instructions that oneDNN is kept to, such as "AVX2"; None where it may use all."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return limit if limit not in ("", "ALL", "DEFAULT") else None


def limited_properties() -> dict[str, str | int]:
    """Properties that a model needs to run at all within the limit. A processor that has no more ignores others."""
    limit = instruction_limit()
    precision: dict[str, str | int] = {PRECISION: "f32"} if limit in WITHOUT_BF16 else {}
    return precision | ({GROUP_SIZE: 0} if limit in WITHOUT_VNNI else {})


def fastest_precision() -> str:
    """What the processor computes fastest in: bf16, where it has it."""
    has_bf16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if has_bf16 and instruction_limit() not in WITHOUT_BF16 else "f32"
