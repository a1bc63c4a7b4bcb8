"""Tuning: the properties with which a model runs fastest on this machine, of those under which it stays exact."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from .exactness import is_exact
from .paged_model import BLOCK_SIZE, PRECISION, PagedModel, Window, fastest_precision

# How many activations share a scale where the weights are int8 or int4. The plugin's own choice is 32. Larger groups
# are coarser and faster; none is larger than a usual group of int4 weights.
GROUP_SIZE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
CANDIDATES: tuple[Mapping[str, int], ...] = ({}, {GROUP_SIZE: 64}, {GROUP_SIZE: 128})
ROWS = (2, 4, 8, 16)  # of the passes that are timed
CONTEXT = 64
REPEATS = 5
WORTH_IT = 0.95  # how much of the time of the plugin's own choice another may take, to be taken
NUM_TOKENS = 128


def fastest_properties(model: Path) -> dict[str, int]:
    """Time passes with each of CANDIDATES, one after the other, as some models fit into memory only once.

    Raises what PagedModel raises.
    """
    chosen, least = CANDIDATES[0], WORTH_IT
    own_s: list[float] = []
    for properties in CANDIDATES:
        candidate = PagedModel(model, NUM_TOKENS // BLOCK_SIZE, {PRECISION: fastest_precision(), **properties})
        took_s = [_fastest_s(candidate, rows) for rows in ROWS]
        own_s = own_s or took_s
        relative = sum(took / own for took, own in zip(took_s, own_s, strict=True)) / len(ROWS)
        if relative < least and is_exact(candidate, range(candidate.num_blocks), NUM_TOKENS):
            chosen, least = properties, relative
        del candidate  # else two are in memory
    return dict(chosen)


def _fastest_s(model: PagedModel, rows: int) -> float:
    """The shortest time of a pass; the first ones pack weights and prepare kernels, and are never the fastest."""
    times: list[float] = []
    for _ in range(1 + REPEATS):
        began = time.perf_counter()
        model.forward([Window([0] * rows, CONTEXT, range(model.num_blocks), num_rows=rows)])
        times.append(time.perf_counter() - began)
    return min(times)
