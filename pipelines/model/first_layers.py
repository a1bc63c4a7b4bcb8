"""FirstLayers: the first layers of a large model, which show quickly how the whole of it is best run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from ..errors import UnsupportedModel
from .paged_model import PagedModel, read_paged_model
from .pair import num_layers
from .parts import beginning

TRIED_BYTES = 1 << 28  # of the weights of a large model
FEWEST = 4  # layers

log = logging.getLogger(__name__)


def first_layers(folder: Path, light_bytes: int) -> int | None:
    """How many first layers are tried in place of the model in `folder`. None if the whole is to be tried, since it has
    no more than `light_bytes` of weights or only a few layers, or since its layers cannot be told apart.

    Raises BrokenPair if its IR cannot be read or its config.json does not say how many layers it has, and
    UnsupportedModel if it cannot be converted to paged attention.
    """
    weights = folder / "openvino_model.bin"
    if not weights.is_file() or weights.stat().st_size <= light_bytes:
        return None
    number = num_layers(folder)
    tried = max(FEWEST, round(number * TRIED_BYTES / weights.stat().st_size))
    if tried >= number:
        return None
    model = read_paged_model(ov.Core(), folder)
    try:
        beginning(model, tried, folder)
    except UnsupportedModel as error:
        log.info("%s", error)
        return None
    return tried


class FirstLayers(PagedModel):
    """A `PagedModel` with the first `num_layers` layers, whose output the projection to the vocabulary reads. It needs
    the same kernels as the whole model, whose bits depend on the same numbers of rows then, and a pass with other
    properties takes longer by nearly the same factor.

    Raises what PagedModel raises, and UnsupportedModel if the layers cannot be told apart (see `first_layers`).
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
