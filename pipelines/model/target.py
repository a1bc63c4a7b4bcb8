"""Target: what the engine needs of the model that decides on the tokens, and what it feeds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

PREFILL_ROWS = 512  # largest pass: longer ones do not read a prompt any faster


@dataclass(frozen=True, slots=True)
class Window:
    """One sequence's new tokens in a pass.

    tokens: token ids for the positions from `start` on.
    blocks: ids of the sequence's cache blocks, in order.
    num_rows: how many of the last tokens get logits.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_rows: int = 1

    @classmethod
    def filling(cls, num_rows: int) -> Window:
        """A window that only pads a pass: it belongs to no sequence, and no logits of it are wanted."""
        return cls([0] * num_rows, 0, [], 0)


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows a pass may have, counted over all sequences.

    The device chooses kernels by the number of rows, and the last bits of the logits depend on the kernel. All passes
    of `fewest` to `most` rows, with logits for at least `fewest_projected` of them, give the same bits.

    whole_prompt: where shapes are fixed, as on an NPU, the most tokens of a prompt, which is read alone and in a single
        pass. Passes that decode then take equally long for any number of rows. None: prompts are read in chunks.
    """

    fewest: int = 1
    most: int = PREFILL_ROWS
    fewest_projected: int = 1
    whole_prompt: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that no pass can have, as in a damaged file."""
        if not (1 <= self.fewest <= self.most and self.fewest_projected >= 1):
            raise ValueError(f"no pass has so many rows: {self}")


ANY_ROWS = Rows()


class Target(Protocol):
    """A model with a key-value cache, from which rejected tokens can be taken back.

    num_threads: of the processor; 0 where another device computes.
    precision: the type that the device computes in, such as "f32".
    weight_bytes, cache_bytes: its size in memory.
    num_taken_over: rows of passes so far of which a draft by the target itself had computed a part, so that these
        passes were shorter.
    """

    rows: Rows
    vocabulary_size: int
    num_threads: int
    precision: str
    weight_bytes: int
    num_taken_over: int

    @property
    def cache_bytes(self) -> int: ...

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        """Run all windows in one pass; logits float32 [num_rows, vocabulary] for each of them, in memory that the next
        pass overwrites."""
        ...

    def hidden_states(self) -> list[NDArray[np.float32]]:
        """The hidden states of each window's tokens in the last pass, float32 [tokens, width], in memory that the next
        pass overwrites; none unless a head needs them."""
        ...

    def occupy(self, blocks: Sequence[int]) -> None:
        """Fill the cache with anything, so that passes over it take a realistic time."""
        ...

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        """Run a pass of `rows` rows after `context` tokens, whatever they are, in order to time it."""
        ...


class ResizableTarget(Target, Protocol):
    """A target whose cache can have any number of blocks."""

    num_blocks: int

    def resize(self, num_blocks: int) -> None:
        """Replace the cache by an empty one of `num_blocks` blocks."""
        ...


def prefill(model: Target, tokens: Sequence[int], num_cached: int, blocks: Sequence[int]) -> NDArray[np.float32]:
    """Read the tokens of one sequence that are not cached yet; logits [vocabulary] after the last of them."""
    last, most = len(tokens) - 1, model.rows.most
    for start in range(min(num_cached, last), last + 1, most):
        (logits,) = model.forward([Window(tokens[start : start + most], start, blocks)])
    return logits[-1]
