"""StatesCache: the target's hidden states of texts that were read lately, for requests that begin like them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from ...model.heads.head_model import States


class StatesCache:
    """Holds states of at most `most_bytes`, in blocks of `block_size` tokens, and drops the longest unused first.

    num_bytes: the size of the states that it holds.

    The key of a block is a hash of all tokens up to its end. A collision would spoil drafts and nothing else.
    """

    def __init__(self, most_bytes: int, block_size: int) -> None:
        self._most_bytes = most_bytes
        self._block_size = block_size
        self.num_bytes = 0
        self._blocks: OrderedDict[int, States] = OrderedDict()  # float32 [block_size, taps * width] each

    def keep(self, keys: list[int], tokens: Sequence[int], begin: int, states: States) -> None:
        """Keep the full blocks of a text that have no keys yet, and add their keys to `keys`.

        states: of `tokens` from position `begin` on, float32 [tokens, taps * width].
        """
        while (len(keys) + 1) * self._block_size <= begin + len(states):
            start = len(keys) * self._block_size - begin
            keys.append(self._next_key(keys, tokens))
            if start >= 0:
                self._put(keys[-1], states[start : start + self._block_size])

    def before(self, position: int, tokens: Sequence[int], most: int) -> tuple[States | None, list[int]]:
        """The states of up to `most` tokens before a position of a text, and the keys of the full blocks before it. The
        states are None if those right before the position are not known."""
        num_blocks = -(-position // self._block_size)
        keys: list[int] = []
        for _ in range(min(num_blocks, len(tokens) // self._block_size)):
            keys.append(self._next_key(keys, tokens))
        found: list[States] = []
        for key in reversed(keys if len(keys) == num_blocks else ()):
            if key not in self._blocks or len(found) * self._block_size >= self._block_size + most:
                break
            self._blocks.move_to_end(key)
            found.insert(0, self._blocks[key])
        states = np.concatenate(found)[: position - num_blocks * self._block_size or None][-most:] if found else None
        return states, keys[: position // self._block_size]

    def clear(self) -> None:
        self._blocks.clear()
        self.num_bytes = 0

    def _put(self, key: int, states: States) -> None:
        if key not in self._blocks:
            self._blocks[key] = states.copy()
            self.num_bytes += states.nbytes
        self._blocks.move_to_end(key)
        while self.num_bytes > self._most_bytes:
            self.num_bytes -= self._blocks.popitem(last=False)[1].nbytes

    def _next_key(self, keys: Sequence[int], tokens: Sequence[int]) -> int:
        """The key of the block after those that have `keys`."""
        start = len(keys) * self._block_size
        return hash((keys[-1] if keys else 0, *tokens[start : start + self._block_size]))
