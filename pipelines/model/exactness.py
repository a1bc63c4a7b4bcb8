"""Exactness: which numbers of rows give bitwise equal logits on this device, found out by trying."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .paged_model import BLOCK_SIZE
from .target import ANY_ROWS, ResizableTarget, Rows, Window

# Numbers of rows to try: all small ones, then the tile sizes of kernels and some in between.
TRIED = (*range(1, 10), 12, 16, 17, 24, 32, 33, 48, 64, 65, 80, 96, 128, 192, 256, 512)
MOST_FILLED = 8  # largest `Rows.fewest` to accept
FILLED = (2, 5, 8)  # values of `Rows.fewest` to try next if the full check refutes the first
PROBED = 16  # tokens whose logits are compared
READING = 16  # least `Rows.most` to accept, so that prompts are read at a fair speed
PATIENCE_S = 10.0  # how long to go on trying larger passes once READING is reached

LENGTHS = (40, 56, 72)  # tokens of the texts that the check splits; the last begins like the first
SHARED = BLOCK_SIZE  # length of that common beginning
MOST_REJECTED = 5
CHECKED_TOKENS = 2048  # longest context to check
SIZES = (1, 1, 1, 2, 3, 5, 8, 24)  # of windows
BEHIND = 8  # tokens that are fed behind a long context
SEED = 0


def exact_rows(
    model: ResizableTarget,
    max_context: int = CHECKED_TOKENS,
    is_affordable: Callable[[int], bool] = lambda fewest: True,
) -> Rows | None:
    """Find the range of rows in which all passes give the same bits, and check it with `is_exact`.

    None if no affordable range reaches READING rows; `is_affordable` is asked with its `fewest`. Sets `model.rows` to
    the result, or to ANY_ROWS, and leaves the cache in an arbitrary state.
    """
    found = find_rows(model, is_affordable, max_context)
    if found is None:
        return None
    for fewest in (found.fewest, *(more for more in FILLED if more > found.fewest)):
        model.rows = Rows(fewest, found.most, max(fewest, found.fewest_projected))
        if not is_affordable(fewest):
            break
        if is_exact(model, max_context):
            return model.rows
    model.rows = ANY_ROWS
    return None


def find_rows(
    model: ResizableTarget,
    is_affordable: Callable[[int], bool] = lambda fewest: True,
    max_context: int = CHECKED_TOKENS,
) -> Rows | None:
    """The first range of rows in which all passes give the same bits, found by probing. No text is longer than
    `max_context`, since some models have a fixed number of positions.

    None if no affordable range reaches READING rows. Sets `model.rows` to the result, or to ANY_ROWS, and resizes the
    cache.
    """
    model.resize(-(-TRIED[-1] // BLOCK_SIZE) + 1)
    model.rows = ANY_ROWS
    fewest_projected = _fewest_projected(model)
    model.rows = Rows(fewest_projected=fewest_projected)
    found = _range_alike(model, is_affordable, max(BLOCK_SIZE, min(max_context, TRIED[-1])))
    model.rows = ANY_ROWS if found is None else Rows(*found, fewest_projected)
    return None if found is None else model.rows


def is_exact(model: ResizableTarget, max_context: int = CHECKED_TOKENS) -> bool:
    """Whether logits are bitwise the same however tokens are split into passes that keep to `model.rows`.

    Does what the engine does: feeds texts alone, in long passes and token by token, then several at once, in windows of
    all sizes, in scattered blocks, with rejected drafts that are overwritten, with a beginning that another text has
    computed, and behind a long context. Resizes and overwrites the cache.
    """
    longest = min(max_context, CHECKED_TOKENS)
    lengths = [max(1, min(length, longest - MOST_REJECTED)) for length in LENGTHS]
    model.resize(max(sum(_blocks_for(length + MOST_REJECTED) for length in lengths), _blocks_for(longest)) + 1)
    rng = random.Random(SEED)
    tokens = [[rng.randrange(model.vocabulary_size) for _ in range(length)] for length in lengths]
    if lengths[-1] > SHARED:
        tokens[-1][:SHARED] = tokens[0][:SHARED]
    expected = [_read(model, each) for each in tokens]
    free = rng.sample(range(model.num_blocks), model.num_blocks)
    texts = [
        _Text(each, logits, [free.pop() for _ in range(_blocks_for(len(each) + MOST_REJECTED))])
        for each, logits in zip(tokens, expected, strict=True)
    ]
    return (
        _is_alike_one_by_one(model, texts[0])
        and _is_alike_together(model, texts, rng)
        and _is_alike_behind(model, longest, rng)
    )


def _fewest_projected(model: ResizableTarget) -> int:
    """The least number of rows from which on the projection on the vocabulary gives the same bits, up to PROBED."""
    tokens = _tokens(model, PROBED)
    expected = _projected(model, tokens, PROBED)
    fewest = PROBED
    while fewest > 1 and np.array_equal(_projected(model, tokens, fewest - 1), expected[1 - fewest :]):
        fewest -= 1
    return fewest


def _projected(model: ResizableTarget, tokens: Sequence[int], num_rows: int) -> NDArray[np.float32]:
    return model.forward([Window(tokens, 0, range(_blocks_for(len(tokens))), num_rows)])[0].copy()


def _range_alike(model: ResizableTarget, is_affordable: Callable[[int], bool], longest: int) -> tuple[int, int] | None:
    """The first range of TRIED that reaches READING and whose passes give the same logits."""
    began, fewest, most = time.perf_counter(), TRIED[0], TRIED[0]
    before = _probed(model, fewest, longest)
    for num_rows in TRIED[1:]:
        logits = _probed(model, num_rows, longest)
        if not np.array_equal(before, logits):
            if most >= READING:
                break
            fewest = num_rows
            if fewest > MOST_FILLED or not is_affordable(fewest):
                return None
        before, most = logits, num_rows
        if most >= READING and time.perf_counter() - began > PATIENCE_S:
            break
    return (fewest, most) if most >= READING else None


def _probed(model: ResizableTarget, num_rows: int, longest: int) -> NDArray[np.float32]:
    """The logits of the first PROBED tokens of a text, computed in passes of `num_rows` rows. Other sequences, each of
    up to `longest` tokens, take the remaining rows. Several tokens are compared because a change of kernel does not
    change the bits of every row."""
    tokens, length = _tokens(model, TRIED[-1]), longest - longest % BLOCK_SIZE
    logits = []
    for at in range(0, PROBED, num_rows):
        windows = [Window(tokens[at : min(at + num_rows, PROBED)], at, [0], min(num_rows, PROBED - at))]
        others = tokens[PROBED : PROBED + num_rows - windows[0].num_rows]
        for begin in range(0, len(others), length):
            other = others[begin : begin + length]
            first_block = 1 + begin // BLOCK_SIZE
            windows.append(Window(other, 0, range(first_block, first_block + _blocks_for(len(other))), len(other)))
        logits.append(model.forward(windows)[0].copy())
    return np.concatenate(logits)


def _read(model: ResizableTarget, text: Sequence[int]) -> NDArray[np.float32]:
    """The logits of all tokens of a text, read alone in the longest passes."""
    most = model.rows.most
    parts = [(at, text[at : at + most]) for at in range(0, len(text), most)]
    windows = [Window(part, at, range(_blocks_for(len(text))), len(part)) for at, part in parts]
    return np.concatenate([model.forward([window])[0].copy() for window in windows])


@dataclass(slots=True)
class _Text:
    """A text of which `end` tokens are fed, and the expected logits of all of them."""

    tokens: Sequence[int]
    expected: NDArray[np.float32]
    blocks: list[int]
    end: int = 0

    @property
    def is_due(self) -> bool:
        return self.end < len(self.tokens)


def _is_alike_one_by_one(model: ResizableTarget, text: _Text) -> bool:
    """Feeds a text alone, token by token, as plain decoding does."""
    windows = (Window([token], at, text.blocks) for at, token in enumerate(text.tokens))
    return all(np.array_equal(model.forward([each])[0][0], text.expected[each.start]) for each in windows)


def _is_alike_together(model: ResizableTarget, texts: Sequence[_Text], rng: random.Random) -> bool:
    """Feeds texts together, split at random."""
    first, last = texts[0], texts[-1]
    if first.tokens[:SHARED] == last.tokens[:SHARED]:
        last.blocks[0], last.end = first.blocks[0], SHARED
    while due := [text for text in texts if text.is_due and (text is not last or first.end >= last.end)]:
        windows: list[tuple[_Text, int, Window]] = []
        room = model.rows.most
        for text in rng.sample(due, rng.randint(1, len(due))):
            size = min(rng.choice(SIZES), len(text.tokens) - text.end, model.rows.most - MOST_REJECTED)
            rejected = [rng.randrange(model.vocabulary_size) for _ in range(rng.choice((0, 0, 1, MOST_REJECTED)))]
            tokens = [*text.tokens[text.end : text.end + size], *rejected]
            if len(tokens) <= room:
                num_rows = rng.choice((len(tokens), 1 + len(rejected)))  # as of a draft and of a prompt
                windows.append((text, size, Window(tokens, text.end, text.blocks, num_rows)))
                room -= len(tokens)
        for (text, size, window), logits in zip(windows, model.forward([each for *_, each in windows]), strict=True):
            begin = text.end + len(window.tokens) - window.num_rows
            text.end += size
            if not np.array_equal(logits[: text.end - begin], text.expected[begin : text.end]):
                return False
    return True


def _is_alike_behind(model: ResizableTarget, longest: int, rng: random.Random) -> bool:
    """Feeds a few tokens behind a long arbitrary context: all at once, in parts, and beside another text."""
    if longest <= 2 * BEHIND:
        return True
    blocks, start = range(_blocks_for(longest)), longest - BEHIND
    model.occupy(blocks)
    tokens = [rng.randrange(model.vocabulary_size) for _ in range(BEHIND)]
    other = Window(tokens, 0, [model.num_blocks - 1], BEHIND)
    expected = model.forward([Window(tokens, start, blocks, BEHIND)])[0].copy()
    for cut, beside in (((1,) * BEHIND, []), ((2, 1, 3, 2), [other]), ((1, 5, 2), [])):
        at = 0
        for size in cut:
            window = Window(tokens[at : at + size], start + at, blocks, size)
            if not np.array_equal(model.forward([window, *beside])[0], expected[at : at + size]):
                return False
            at += size
    return True


def _tokens(model: ResizableTarget, number: int) -> list[int]:
    return np.random.default_rng(SEED).integers(0, model.vocabulary_size, number).tolist()


def _blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)
