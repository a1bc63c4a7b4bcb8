"""Threads: how many OpenVINO computes with on the CPU, and other numbers that may be faster.

By itself it takes one for each core with the latency hint, and on processors with two kinds of cores those of one kind
or of both, by a rule for models of any sort (its documentation, "Performance Hints and Thread Scheduling"). Reading
weights from memory, which is what a pass of few rows does, can be as fast with fewer threads, or faster with more.
"""

from __future__ import annotations

import os

import numpy as np
import openvino as ov
import psutil
from openvino import opset13

NUM_THREADS = "INFERENCE_NUM_THREADS"
CORE_TYPE = "SCHEDULING_CORE_TYPE"
HYPER_THREADING = "ENABLE_HYPER_THREADING"
# Properties that say where a model runs. What drafts runs where the target does.
PLACE = (NUM_THREADS, CORE_TYPE, HYPER_THREADING, "ENABLE_CPU_PINNING")
FEWEST_HALVED = 4  # of a smaller number of threads, half are never faster
QUIET = 0.25  # processors that other programs may use while numbers are compared
LOOKED_S = 0.3  # for how long that is looked at


def other_numbers(own: int) -> list[int]:
    """Numbers of threads to try besides `own`: one for each performance core, each core and each logical processor that
    this process may use, and half of `own`."""
    half = [own // 2] if own >= FEWEST_HALVED else []
    cores = (_usable(False, "PCORE_ONLY"), _usable(False), _usable(True))
    return [number for number in dict.fromkeys((*cores, *half)) if number != own]


def with_threads(number: int | None) -> dict[str, int | bool]:
    """The properties with which a model runs on that many; None: as many as OpenVINO chooses."""
    if number is None:
        return {}
    return {NUM_THREADS: number, HYPER_THREADING: number > _usable(False)}


def is_quiet() -> bool:
    """Whether other programs leave the processor to this one, in which no model may run meanwhile. A thread that has to
    share its core holds up all others, so fewer of them seem to be faster on a busy machine."""
    return bool(psutil.cpu_percent(LOOKED_S) / 100 * (psutil.cpu_count() or 1) <= QUIET)


def _usable(hyper_threading: bool, core_type: str = "ANY_CORE") -> int:
    """The most threads that OpenVINO runs a model on with these properties. It knows the processor's cores on every
    system, and tells their number of a compiled model only, so a tiny one is compiled."""
    width = opset13.parameter([1], np.float32)
    asked = {NUM_THREADS: os.cpu_count() or 1, HYPER_THREADING: hyper_threading, CORE_TYPE: core_type}
    compiled = ov.Core().compile_model(ov.Model([opset13.relu(width)], [width]), "CPU", asked)
    return int(compiled.get_property(NUM_THREADS))
