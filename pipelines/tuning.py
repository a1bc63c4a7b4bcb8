"""Tuning: with which properties a model runs fastest on this machine, of those under which it stays exact."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import InvalidOption
from .exactness import is_exact
from .paged_model import BLOCK_SIZE, PRECISION, PROPERTIES, PagedModel, Window, fastest_precision
from .profile import keep_precision, known_precision

# How many activations share a scale where the weights are int8 or int4. The plugin's own choice is 32. Larger groups
# are coarser and faster; none is larger than a usual group of int4 weights.
GROUP_SIZE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
CANDIDATES: tuple[Mapping[str, int], ...] = ({}, {GROUP_SIZE: 64}, {GROUP_SIZE: 128})
ROWS = (2, 4, 8, 16)  # of the passes that are timed
CONTEXT = 64
REPEATS = 5
WORTH_IT = 0.95  # how much of the time of the plugin's own choice another may take, to be taken
NUM_TOKENS = 128

log = logging.getLogger(__name__)


def fastest_properties(model: Path) -> dict[str, int]:
    """Time passes with each of CANDIDATES, one after the other, as some models fit into memory only once, and all in
    the precision that is right for the first.

    Raises what PagedModel raises.
    """
    chosen, least = CANDIDATES[0], WORTH_IT
    own_s: list[float] = []
    fixed: dict[str, str] = {}
    for properties in CANDIDATES:
        candidate = load_fastest(model, NUM_TOKENS // BLOCK_SIZE, {**fixed, **properties}, True, NUM_TOKENS)
        fixed = {PRECISION: candidate.precision}
        took_s = _fastest_s(candidate)
        own_s = own_s or took_s
        relative = _relative(took_s, own_s)
        if relative < least and is_exact(candidate, range(candidate.num_blocks), NUM_TOKENS):
            chosen, least = properties, relative
        del candidate  # else two are in memory
    return dict(chosen)


def load_fastest(
    folder: Path, num_blocks: int, properties: Mapping[str, Any], exact: bool, num_tried: int, kept: Path | None = None
) -> PagedModel:
    """A PagedModel in the precision that is fastest here, unless the properties name one.

    Where `exact`, that is the processor's own if the promise holds in it for `num_tried` tokens. Where it is not, as
    with AMX, which other matrix kernels use for few rows than for many, passes over compressed weights are no faster in
    it either: OpenVINO quantizes no activations then. Without exactness passes are timed in both. What came out is
    remembered in the file `kept`, since a large model takes long to try. Raises what PagedModel raises.
    """
    own, full = fastest_precision(), PROPERTIES[PRECISION]
    if PRECISION in properties or own == full:
        return PagedModel(folder, num_blocks, properties, exact)

    def load(precision: str) -> PagedModel:
        return PagedModel(folder, num_blocks, {**properties, PRECISION: precision}, exact)

    def chosen(precision: str) -> str:
        if kept is not None:
            keep_precision(kept, precision)
        return precision

    known = None if kept is None else known_precision(kept, (own, full))
    if known == full or (known == own and not exact):
        return load(known)
    try:
        model = load(own)
    except InvalidOption as error:
        log.info("The properties do not go together with %s: %s", own, error)
        return load(chosen(full))
    if exact:
        if is_exact(model, range(num_blocks), num_tried):
            return model
        log.info("%s is not exact in %s here, so %s is taken.", folder, own, full)
        del model  # else both are in memory
        return load(chosen(full))
    own_s = _fastest_s(model)
    del model
    model = load(full)
    if _relative(_fastest_s(model), own_s) < 1:
        chosen(full)
        return model
    del model
    return load(chosen(own))


def _relative(took_s: Sequence[float], own_s: Sequence[float]) -> float:
    return sum(took / own for took, own in zip(took_s, own_s, strict=True)) / len(ROWS)


def _fastest_s(model: PagedModel) -> list[float]:
    """For each of ROWS the shortest time of a pass; the first ones pack weights and prepare kernels, and are never the
    fastest."""
    blocks = range(min(model.num_blocks, NUM_TOKENS // BLOCK_SIZE))
    return [min(_pass_s(model, blocks, rows) for _ in range(1 + REPEATS)) for rows in ROWS]


def _pass_s(model: PagedModel, blocks: Sequence[int], rows: int) -> float:
    context = min(CONTEXT, len(blocks) * BLOCK_SIZE - rows)
    began = time.perf_counter()
    model.forward([Window([0] * rows, context, blocks, num_rows=rows)])
    return time.perf_counter() - began
