"""BlockPool: who owns which block of the key-value cache, and which full blocks can be shared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


class OutOfBlocks(Exception):
    """Not enough blocks are free at this moment."""


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence, in order.

    num_shared: how many of its first blocks are published, or have been published by others with the same content.
    tip: the serial number of the last of these; 0 if there is none.
    """

    blocks: list[int] = field(default_factory=list)
    tip: int = 0
    num_shared: int = 0


class BlockPool:
    """Hands out blocks of `block_size` token slots.

    A full block whose content is known can be published; a later sequence with the same first tokens takes it over
    instead of computing it again. Published blocks that nobody uses stay until their memory is needed, the longest
    unused first. A block is known by its tokens and by the serial number of the block before it, so two blocks are the
    same exactly when all tokens up to their end are the same; a collision of hashes cannot confuse them.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # in the order of their reuse
        self._owners = [0] * num_blocks
        self._published: dict[Hashable, int] = {}
        self._key: list[Hashable | None] = [None] * num_blocks
        self._serial = [0] * num_blocks
        self._next_serial = 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses, published or not."""
        return len(self._unused)

    @property
    def num_tokens(self) -> int:
        """Slots of all blocks together."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """The number of blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def open(self, tokens: Sequence[int], num_slots: int) -> tuple[BlockTable, int]:
        """A table of at least `num_slots` slots for a sequence that begins with `tokens`.

        Returns it with the number of tokens whose keys and values are already in the cache. Raises OutOfBlocks, and
        takes nothing, where not enough blocks are free.
        """
        table = self._shared(tokens)
        shared = table.blocks
        needed = self.blocks_for(num_slots) - len(shared)
        if needed > self.num_free - sum(self._owners[block] == 0 for block in shared):
            raise OutOfBlocks(f"{needed} blocks needed, {self.num_free} free")
        for block in shared:
            self._owners[block] += 1
            self._unused.pop(block, None)
        table.blocks = shared + [self._take() for _ in range(needed)]
        return table, table.num_shared * self.block_size

    def num_known(self, tokens: Sequence[int]) -> int:
        """How many of a sequence's first tokens would have keys and values in a table that is opened for it now."""
        return self._shared(tokens).num_shared * self.block_size

    def grow(self, table: BlockTable, num_slots: int) -> None:
        """Add blocks until the table has `num_slots` slots. Raises OutOfBlocks, and takes nothing."""
        needed = self.blocks_for(num_slots) - len(table.blocks)
        if needed > self.num_free:
            raise OutOfBlocks(f"{needed} blocks needed, {self.num_free} free")
        table.blocks += [self._take() for _ in range(needed)]

    def shrink(self, table: BlockTable, num_slots: int) -> None:
        """Give back the blocks after those that `num_slots` slots need; they hold nothing that was published."""
        needed = self.blocks_for(num_slots)
        for block in reversed(table.blocks[needed:]):
            self._give_back(block)
        del table.blocks[needed:]

    def follow(self, table: BlockTable, tokens: Sequence[int], num_cached: int) -> int:
        """Take over what others published of `tokens` since the table was opened; returns how many are cached now."""
        while (block := self._published.get(self.next_block(table, tokens, num_cached))) is not None:
            own = table.blocks[table.num_shared]
            self._owners[block] += 1
            self._unused.pop(block, None)
            self._give_back(own)
            table.blocks[table.num_shared] = block
            table.tip, table.num_shared = self._serial[block], table.num_shared + 1
            num_cached += self.block_size
        return num_cached

    def publish(self, table: BlockTable, tokens: Sequence[int], num_cached: int) -> None:
        """Let others share the full blocks of the table's first `num_cached` tokens, which will not change any more."""
        while (table.num_shared + 1) * self.block_size <= num_cached:
            key = self._key_of(tokens, table)
            block = self._published.get(key)
            if block is None:
                block = table.blocks[table.num_shared]
                self._published[key], self._key[block] = block, key
                self._serial[block], self._next_serial = self._next_serial, self._next_serial + 1
            table.tip, table.num_shared = self._serial[block], table.num_shared + 1

    def close(self, table: BlockTable) -> None:
        """Give the table's blocks back; the last go first, so that beginnings stay shareable the longest."""
        for block in reversed(table.blocks):
            self._give_back(block)
        table.blocks = []

    def next_block(self, table: BlockTable, tokens: Sequence[int], num_cached: int) -> Hashable | None:
        """The key by which the next block will be known, so that two requests that compute the same block can tell.

        None if it is begun already or `tokens` do not fill it.
        """
        begin = table.num_shared * self.block_size
        return self._key_of(tokens, table) if begin == num_cached and begin + self.block_size <= len(tokens) else None

    def _give_back(self, block: int) -> None:
        self._owners[block] -= 1
        if self._owners[block] == 0:
            self._unused[block] = None
            if self._key[block] is None:
                self._unused.move_to_end(block, last=False)

    def _key_of(self, tokens: Sequence[int], table: BlockTable) -> tuple[int, tuple[int, ...]]:
        start = table.num_shared * self.block_size
        return table.tip, tuple(tokens[start : start + self.block_size])

    def _shared(self, tokens: Sequence[int]) -> BlockTable:
        """The published blocks of a sequence's beginning, not taken yet."""
        table = BlockTable()
        while (block := self._published.get(self._key_of(tokens, table))) is not None:
            table.blocks.append(block)
            table.tip, table.num_shared = self._serial[block], table.num_shared + 1
        return table

    def _take(self) -> int:
        block, _ = self._unused.popitem(last=False)
        key, self._key[block] = self._key[block], None
        if key is not None:
            del self._published[key]
        self._owners[block] = 1
        return block
