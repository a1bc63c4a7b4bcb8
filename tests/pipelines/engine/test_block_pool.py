"""The block pool against a model of it that knows what stands in every block."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from outrider.pipelines.engine.block_pool import BlockPool, BlockTable, OutOfBlocks

NUM_BLOCKS, BLOCK_SIZE = 8, 2
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)  # two different tokens, so that prefixes meet


@dataclass(eq=False)
class Owner:
    """A sequence: its table, its tokens, and how many of them are computed."""

    table: BlockTable
    tokens: list[int]
    num_cached: int


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, compute, grow and go in any order."""

    owners = Bundle("owners")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        self.live: list[Owner] = []
        self.content: dict[int, tuple[int, ...]] = {}  # block: all tokens of its sequence up to its end

    def unused(self) -> int:
        return NUM_BLOCKS - len({block for owner in self.live for block in owner.table.blocks})

    @rule(target=owners, tokens=TOKENS, extra=st.integers(0, 6))
    def open(self, tokens, extra):
        before = copy.deepcopy(vars(self.pool))
        try:
            table, num_cached = self.pool.open(tokens, len(tokens) + extra)
        except OutOfBlocks:
            assert self.pool.blocks_for(len(tokens) + extra) > self.unused()
            assert vars(self.pool) == before, "a refused request took something"
            return multiple()
        assert num_cached % BLOCK_SIZE == 0
        assert num_cached <= len(tokens)
        assert len(table.blocks) == self.pool.blocks_for(len(tokens) + extra)
        shared = table.blocks[: num_cached // BLOCK_SIZE]
        for i, block in enumerate(shared):
            assert self.content[block] == tuple(tokens[: (i + 1) * BLOCK_SIZE]), "taken over with other tokens in it"
        fresh = set(table.blocks) - set(shared)
        assert not fresh & {block for owner in self.live for block in owner.table.blocks}, "a block has two owners"
        for block in fresh:
            self.content.pop(block, None)
        self.live.append(Owner(table, list(tokens), num_cached))
        return self.live[-1]

    @rule(owner=owners, num_tokens=st.integers(1, 8))
    def compute(self, owner, num_tokens):
        """Write some tokens, which fill blocks, and publish them."""
        owner.num_cached = min(owner.num_cached + num_tokens, len(owner.tokens))
        for i in range(owner.num_cached // BLOCK_SIZE):
            content = tuple(owner.tokens[: (i + 1) * BLOCK_SIZE])
            assert self.content.setdefault(owner.table.blocks[i], content) == content
        self.pool.publish(owner.table, owner.tokens, owner.num_cached)

    @rule(owner=owners, more=TOKENS)
    def grow(self, owner, more):
        before = copy.deepcopy(vars(self.pool)), list(owner.table.blocks)
        num_slots = len(owner.tokens) + len(more)
        try:
            self.pool.grow(owner.table, num_slots)
        except OutOfBlocks:
            assert self.pool.blocks_for(num_slots) - len(owner.table.blocks) > self.unused()
            assert (vars(self.pool), owner.table.blocks) == before, "a refused request took something"
            return
        assert len(owner.table.blocks) >= self.pool.blocks_for(num_slots)
        assert owner.table.blocks[: len(before[1])] == before[1]
        for block in set(owner.table.blocks) - set(before[1]):
            assert all(block not in other.table.blocks for other in self.live if other is not owner)
            self.content.pop(block, None)
        owner.tokens += more

    @rule(owner=owners, spare=st.integers(0, 2 * BLOCK_SIZE))
    def shrink(self, owner, spare):
        """Give back what comes after the tokens, except for some slots."""
        before = list(owner.table.blocks)
        self.pool.shrink(owner.table, len(owner.tokens) + spare)
        assert owner.table.blocks == before[: self.pool.blocks_for(len(owner.tokens) + spare)]

    @rule(owner=consumes(owners))
    def close(self, owner):
        self.pool.close(owner.table)
        self.live.remove(owner)
        assert owner.table.blocks == []

    @invariant()
    def no_block_is_lost(self):
        assert self.pool.num_free == self.unused()

    @invariant()
    def shared_blocks_hold_the_same_tokens(self):
        for i, one in enumerate(self.live):
            assert len(set(one.table.blocks)) == len(one.table.blocks)
            for other in self.live[:i]:
                for block in set(one.table.blocks) & set(other.table.blocks):
                    place = one.table.blocks.index(block)
                    assert other.table.blocks.index(block) == place
                    end = (place + 1) * BLOCK_SIZE
                    assert one.tokens[:end] == other.tokens[:end]


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestBlockPool = PoolMachine.TestCase


def computed(pool: BlockPool, tokens: list[int]) -> BlockTable:
    table, _ = pool.open(tokens, len(tokens))
    pool.publish(table, tokens, len(tokens))
    return table


def test_a_running_sequence_shares_its_full_blocks_and_not_the_open_one():
    pool = BlockPool(8, 4)
    first = computed(pool, list(range(10)))
    second, num_cached = pool.open([*range(8), 99, 100], 10)
    assert num_cached == 8
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]


def test_the_same_block_behind_another_beginning_is_not_shared():
    pool = BlockPool(8, 2)
    computed(pool, [1, 2, 3, 4])
    assert pool.open([9, 9, 3, 4], 4)[1] == 0
    assert pool.open([3, 4, 3, 4], 4)[1] == 0


def test_the_longest_unused_blocks_go_first_and_of_a_sequence_its_end():
    pool = BlockPool(4, 2)
    for tokens in ([1, 1, 2, 2], [3, 3, 4, 4]):
        pool.close(computed(pool, tokens))
    table, _ = pool.open([5, 5], 2)
    assert pool.open([1, 1, 2, 2], 4)[1] == 2
    assert table.blocks


def test_blocks_whose_content_nobody_knows_go_before_published_ones():
    pool = BlockPool(3, 2)
    pool.close(computed(pool, [1, 1]))
    unknown, _ = pool.open([7, 7, 7, 7], 4)
    pool.close(unknown)
    pool.open([8, 8, 8, 8], 4)
    assert pool.open([1, 1], 2)[1] == 2


def test_more_than_the_pool_has_is_refused_with_the_figures():
    pool = BlockPool(3, 2)
    pool.open([1], 2)
    with pytest.raises(OutOfBlocks, match="3 blocks needed, 2 free"):
        pool.open([2], 6)
    assert pool.num_free == 2
