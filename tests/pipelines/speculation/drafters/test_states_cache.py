"""The cache returns the states that were kept of the same text, and no others, within its bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.speculation.drafters.states_cache import StatesCache

BLOCK_SIZE = 4
BLOCK_BYTES = BLOCK_SIZE * 4  # of states of one float32 each


def states_of(tokens) -> np.ndarray:
    """Of each token of a text: a number that depends on all tokens up to it."""
    return np.array([[hash(tuple(tokens[: i + 1])) % 4096] for i in range(len(tokens))], np.float32).reshape(-1, 1)


def kept(cache: StatesCache, tokens, step: int = 100) -> None:
    """Keep the states of a text, `step` tokens at a time."""
    keys: list[int] = []
    for end in range(min(step, len(tokens)), len(tokens) + 1, step):
        cache.keep(keys, tokens, 0, states_of(tokens[:end]))


texts = st.lists(st.integers(0, 1), max_size=24)


@given(st.lists(texts, max_size=4), texts, st.integers(0, 24), st.integers(1, 12), st.integers(1, 7))
def test_what_is_known_before_a_position_are_the_states_of_that_text(others, text, position, most, step):
    cache = StatesCache(1 << 20, BLOCK_SIZE)
    for other in others:
        kept(cache, other, step)
    position = min(position, len(text))
    known, keys = cache.before(position, text, most)
    assert len(keys) == position // BLOCK_SIZE
    if known is not None:
        assert 1 <= len(known) <= most
        np.testing.assert_array_equal(known, states_of(text)[position - len(known) : position])


@given(texts, st.integers(1, 12), st.integers(1, 7))
def test_a_text_that_was_kept_is_known_up_to_its_last_full_block(text, most, step):
    cache = StatesCache(1 << 20, BLOCK_SIZE)
    kept(cache, text, 1)
    num_kept = len(text) // BLOCK_SIZE * BLOCK_SIZE
    for position in range(1, num_kept + 1):
        known, _ = cache.before(position, text, most)
        np.testing.assert_array_equal(known, states_of(text)[max(0, position - most) : position])
    assert all(cache.before(position, text, most)[0] is None for position in range(num_kept + 1, len(text) + 1))


def test_of_blocks_that_do_not_fit_the_longest_unused_are_dropped():
    cache = StatesCache(3 * BLOCK_BYTES, BLOCK_SIZE)
    first, second, third, fourth = ([i] * BLOCK_SIZE for i in range(4))
    for text in (first, second, third):
        kept(cache, text)
    assert cache.before(BLOCK_SIZE, first, BLOCK_SIZE)[0] is not None  # used again
    kept(cache, fourth)
    known = [cache.before(BLOCK_SIZE, text, BLOCK_SIZE)[0] is not None for text in (first, second, third, fourth)]
    assert known == [True, False, True, True]


def test_what_is_kept_does_not_change_with_the_memory_that_it_came_from():
    cache, text = StatesCache(1 << 20, BLOCK_SIZE), list(range(BLOCK_SIZE))
    states = states_of(text)
    cache.keep([], text, 0, states)
    states[:] = -1
    np.testing.assert_array_equal(cache.before(BLOCK_SIZE, text, BLOCK_SIZE)[0], states_of(text))
