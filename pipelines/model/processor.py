"""Processor: which instructions OpenVINO may use, and the properties that it needs if they are restricted.

ONEDNN_MAX_CPU_ISA=AVX2, for example, restricts oneDNN, which computes OpenVINO's matrix products, so that one processor
can stand in for a lesser one. OpenVINO itself still asks the processor, and would use bf16 or quantize activations for
which oneDNN then has no kernel. Its own kernels, such as attention over one row, ignore the variable.
"""

from __future__ import annotations

import os
from pathlib import Path

import openvino as ov

PRECISION = "INFERENCE_PRECISION_HINT"
GROUP_SIZE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"  # activations that share a scale; 0: not quantized
WITHOUT_VNNI = frozenset({"AVX2"})
WITHOUT_BF16 = frozenset({"AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"})


def instruction_limit() -> str | None:
    """The instruction set that oneDNN is restricted to, such as "AVX2"; None if it may use all."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return limit if limit not in ("", "ALL", "DEFAULT") else None


def instructions() -> str:
    """The processor's instruction sets, as Linux lists them. Virtual machines share a name, such as "AMD EPYC", between
    processors that differ in these. Empty on other systems, where the name has to do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("flags")), "")


def usable_cpus() -> int:
    """How many CPUs this process may run on, which is how many threads OpenVINO uses unless it is told otherwise."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def limited_properties() -> dict[str, str | int]:
    """Properties without which no model runs under the restriction."""
    limit = instruction_limit()
    precision: dict[str, str | int] = {PRECISION: "f32"} if limit in WITHOUT_BF16 else {}
    return precision | ({GROUP_SIZE: 0} if limit in WITHOUT_VNNI else {})


def fastest_precision() -> str:
    """The processor's native type: bf16 if it has it, else f32."""
    has_bf16 = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return "bf16" if has_bf16 and instruction_limit() not in WITHOUT_BF16 else "f32"
