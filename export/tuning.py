"""Tuning: the properties with which a model runs fastest on this machine, of those under which it stays exact."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from outrider.pipelines.exactness import is_exact
from outrider.pipelines.paged_model import PagedModel, Window

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
    """Time passes with each of CANDIDATES in turns. Raises what PagedModel raises."""
    num_blocks = NUM_TOKENS // 32
    blocks = list(range(num_blocks))
    models = [PagedModel(model, num_blocks, properties) for properties in CANDIDATES]
    relative = [0.0] * len(models)
    for rows in ROWS:
        fastest = [float("inf")] * len(models)
        for _ in range(1 + REPEATS):  # the first passes pack weights and prepare kernels; they are never the fastest
            for i, candidate in enumerate(models):
                began = time.perf_counter()
                candidate.forward([Window([0] * rows, CONTEXT, blocks, num_rows=rows)])
                fastest[i] = min(fastest[i], time.perf_counter() - began)
        relative = [total + time_s / fastest[0] / len(ROWS) for total, time_s in zip(relative, fastest, strict=True)]
    order = sorted(range(len(models)), key=lambda i: relative[i])
    chosen = next((i for i in order if relative[i] < WORTH_IT and is_exact(models[i], blocks, NUM_TOKENS)), 0)
    return dict(CANDIDATES[chosen])
