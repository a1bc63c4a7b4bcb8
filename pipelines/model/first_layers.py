"""FirstLayers: the beginning of a large model, with which it is soon found out how to run the whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from .paged_model import PagedModel
from .pair import num_layers
from .parts import beginning

TRIED_BYTES = 1 << 28  # of the weights of a large model
FEWEST = 4  # layers


def first_layers(folder: Path, light_bytes: int) -> int | None:
    """How many first layers stand for the model in `folder`: all, hence None, if it has no more than `light_bytes` of
    weights. Raises BrokenPair if its config.json does not say how many it has."""
    weights = folder / "openvino_model.bin"
    if not weights.is_file() or weights.stat().st_size <= light_bytes:
        return None
    number = num_layers(folder)
    tried = max(FEWEST, round(number * TRIED_BYTES / weights.stat().st_size))
    return tried if tried < number else None


class FirstLayers(PagedModel):
    """A `PagedModel` with the first `num_layers` layers, whose output the projection to the vocabulary reads. It needs
    the same kernels as the whole model, whose bits depend on the same numbers of rows then, and a pass with other
    properties takes longer by nearly the same factor.

    Raises what PagedModel raises, and UnsupportedModel if the layers cannot be told apart.
    """

    def __init__(
        self,
        folder: Path,
        num_blocks: int,
        num_layers: int,
        properties: Mapping[str, Any] | None = None,
        exact: bool = True,
        longest: int | None = None,
    ) -> None:
        self._num_layers = num_layers
        self._part_bytes = 0
        super().__init__(folder, num_blocks, properties, exact, longest)
        self.weight_bytes = self._part_bytes

    def _parts_of(self, model: ov.Model, folder: Path) -> list[ov.Model]:
        part = beginning(model, self._num_layers, folder)
        self._part_bytes = part.weight_bytes
        return [part.model]
