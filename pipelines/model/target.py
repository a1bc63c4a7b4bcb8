"""Target: what the engine needs of the model that decides on the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .paged_model import Rows, Window


class Target(Protocol):
    """A model with a key-value cache, from which rejected tokens can be taken back.

    rows: how many rows a pass may have.
    num_threads: of the processor; 0 where another device computes.
    precision: the type that the device computes in, such as "f32".
    weight_bytes, cache_bytes: its size in memory.
    """

    rows: Rows
    vocabulary_size: int
    num_threads: int
    precision: str
    weight_bytes: int

    @property
    def cache_bytes(self) -> int: ...

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        """Run all windows in one pass; logits float32 [num_rows, vocabulary] for each of them, in memory that the next
        pass overwrites."""
        ...

    def occupy(self, blocks: Sequence[int]) -> None:
        """Fill the cache with anything, so that passes over it take a realistic time."""
        ...

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        """Run a pass of `rows` rows behind `context` tokens, whatever they are, in order to time it."""
        ...
