"""HeadModel: what the drafter needs of a head's model, and what it feeds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

States: TypeAlias = NDArray[np.float32]

# Tokens worth reading at first. With 128, few drafts were accepted in edits of longer texts; 512 added nothing.
REACH = 256


@dataclass(frozen=True, slots=True)
class HeadWindow:
    """One sequence's new rows in a pass of a head. The row at a position knows the target's text up to the token after
    it, and predicts the one after that.

    tokens: for each row, the token after its position.
    start: the place of the first row in the head's cache, whose blocks are `blocks`.
    states: the target's hidden states at these positions, float32 [rows, taps * width]; or, for a single row, the
        head's own of the row before, float32 [1, width].
    is_own: whether they are the head's own.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    states: States
    is_own: bool = False


class HeadModel(Protocol):
    """Drafts token by token: first from the target's hidden states, then from its own outputs.

    vocabulary: the token ids that the head predicts, int64 [size]: it may know only the most common ones.
    reach: how many of the last tokens of a text are worth reading at first.
    depth: drafted tokens of one draft at most; None: any number.
    weight_bytes, cache_bytes: its size in memory.
    """

    vocabulary: NDArray[np.int64]
    reach: int
    depth: int | None
    weight_bytes: int

    @property
    def cache_bytes(self) -> int: ...

    def forward(self, windows: Sequence[HeadWindow]) -> tuple[NDArray[np.float32], States]:
        """Run all windows in one pass; logits float32 [windows, vocabulary] and the head's own states float32 [windows,
        width] after the last row of each, in memory that the next pass overwrites. The head decides what its own states
        hold: they are fed back to it with the next token."""
        ...

    def occupy(self, blocks: Sequence[int]) -> None:
        """Fill blocks with anything, so that passes over them take a realistic time."""
        ...

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        """A pass of `rows` rows after `context` tokens, whatever the blocks hold, in order to time it: one row
        continues from the head's own states, several come from the target."""
        ...
