"""Exactness: which numbers of rows give bitwise equal logits on this device, found out by trying."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from .paged_request import BLOCK_SIZE
from .target import ANY_ROWS, ResizableTarget, Rows, Window

# Numbers of rows to try: all small ones, then the tile sizes of kernels and some in between.
TRIED = (*range(1, 10), 12, 16, 17, 24, 32, 33, 48, 64, 65, 80, 96, 128, 192, 256, 512)
MOST_FILLED = 8  # largest `Rows.fewest` to accept
FILLED = (2, 5, 8)  # values of `Rows.fewest` to try next if the full check refutes the first
PROBED = 16  # tokens whose logits are compared
SOME_PROJECTED = (8, 4, 2, 1)  # numbers of projected rows; what lies between two that are alike is not probed
READING = 16  # least `Rows.most` to accept, so that prompts are read at a fair speed
SHORTER = (80, 64, 32, READING)  # values of `Rows.most` to try next if the full check refutes the first
FAST_READING = 64  # larger passes read prompts little faster
PATIENCE_S = 10.0  # how long to go on trying larger passes once FAST_READING is reached

LENGTHS = (36, 17, 24, 33, 64)  # tokens of the short texts; the last begins like the first
SHARED = BLOCK_SIZE  # length of that common beginning
MOST_REJECTED = 5
SIZES = (1, 1, 1, 2, 3, 5, 8, 24)  # of the windows that they are split into
PIECES = (1, 3, 8, 24, 48)  # the same for the long text
ALL_PIECES = 160  # tokens of its beginning that are read in pieces; of the rest, which would take long, only some are
SOME = 1 / 8
COMPARED = 8  # tokens of a piece whose logits are compared, the last ones
CHECKED_TOKENS = 2048  # longest context to check
CONTEXTS = (700, 200)  # shorter ones
BEHIND = 8  # tokens that are fed at the end of a context
SEED = 0

Cut: TypeAlias = tuple[Sequence[int], Sequence[Window]]  # sizes of windows, and the other windows of each pass


def exact_rows(
    model: ResizableTarget,
    max_context: int = CHECKED_TOKENS,
    is_affordable: Callable[[int], bool] = lambda fewest: True,
    until: float = math.inf,
) -> Rows | None:
    """Find the range of rows in which all passes give the same bits, and check it with `is_exact`.

    None if no affordable range reaches READING rows; `is_affordable` is asked with its `fewest`. Sets `model.rows` to
    the result, or to ANY_ROWS, and leaves the cache in an arbitrary state. Raises TimeoutError after `until`, by
    `time.perf_counter`.
    """
    limited = cast("ResizableTarget", _Limited(model, until))
    found = find_rows(limited, is_affordable, max_context)
    if found is None:
        return None
    for fewest in (found.fewest, *(more for more in FILLED if more > found.fewest)):
        if not is_affordable(fewest):
            break
        for most in (found.most, *(less for less in SHORTER if less < found.most)):
            model.rows = Rows(fewest, most, max(fewest, found.fewest_projected))
            if is_exact(model, max_context, until):
                return model.rows
    model.rows = ANY_ROWS
    return None


class _Limited:
    """A model that runs no pass after a certain time."""

    def __init__(self, model: ResizableTarget, until: float) -> None:
        vars(self).update(_model=model, _until=until)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        if time.perf_counter() > self._until:
            raise TimeoutError("Finding out about exactness takes too long.")
        return self._model.forward(windows)


def find_rows(
    model: ResizableTarget,
    is_affordable: Callable[[int], bool] = lambda fewest: True,
    max_context: int = CHECKED_TOKENS,
) -> Rows | None:
    """The first range of rows in which all passes give the same bits, found by probing. No text is longer than
    `max_context`, since some models have a fixed number of positions.

    None if no affordable range reaches READING rows. Sets `model.rows` to the result, or to ANY_ROWS, and resizes the
    cache. Whether a range is affordable is asked before it is probed further, since a pass of a large model takes a
    second.
    """
    model.resize(-(-TRIED[-1] // BLOCK_SIZE) + 1)
    model.rows = Rows(fewest_projected=PROBED)  # so that the projection makes no difference
    found = _range_alike(model, is_affordable, max(BLOCK_SIZE, min(max_context, TRIED[-1])))
    model.rows = ANY_ROWS
    if found is None:
        return None
    model.rows = Rows(*found, _fewest_projected(model))
    return model.rows


def is_exact(model: ResizableTarget, max_context: int = CHECKED_TOKENS, until: float = math.inf) -> bool:
    """Whether logits are bitwise the same however tokens are split into passes that keep to `model.rows`.

    Does what the engine does, with texts of arbitrary tokens. It feeds

    - short texts, alone in long passes and token by token, then together, in windows of all sizes, in scattered blocks,
      with rejected drafts that are overwritten, and with a beginning that another text has computed;
    - a text of `rows.most` tokens in one window, then its beginning and some of the rest in pieces;
    - a pass of `rows.most` rows, with all short texts and a wide window that ends the longest context;
    - a few tokens at the end of that context, alone and together with another text, and at the end of contexts of
      CONTEXTS tokens.

    With `rows.most` of 512 these are 1,900 rows in a hundred passes, with 80 they are 800: seconds with a model of 1B
    parameters. That is why not every row of the long passes is compared, and why no context is longer than
    CHECKED_TOKENS. None is longer than `max_context` either. Resizes and overwrites the cache. Raises TimeoutError
    after `until`, by `time.perf_counter`.
    """
    model = cast("ResizableTarget", _Limited(model, until))
    longest, rng = min(max_context, CHECKED_TOKENS), random.Random(SEED)
    lengths = [max(1, min(length, longest - MOST_REJECTED)) for length in LENGTHS]
    num_blocks = [_blocks_for(length + MOST_REJECTED) for length in lengths]
    others = model.rows.most // longest  # texts that fill a pass up where contexts are short
    model.resize(sum(num_blocks) + (1 + others) * _blocks_for(longest) + 1)
    tokens = [_arbitrary(model, length, rng) for length in lengths]
    if lengths[-1] > SHARED:
        tokens[-1][:SHARED] = tokens[0][:SHARED]
    expected = [_read(model, each) for each in tokens]
    free = rng.sample(range(model.num_blocks), model.num_blocks)
    texts = [
        _Text(each, logits, [free.pop() for _ in range(number)])
        for each, logits, number in zip(tokens, expected, num_blocks, strict=True)
    ]
    context = [free.pop() for _ in range(_blocks_for(longest))]
    return (
        _is_alike_one_by_one(model, texts[0])
        and _is_alike_together(model, texts, rng)
        and _is_alike_in_one_window(model, min(model.rows.most, longest), context, rng)
        and _is_alike_in_a_full_pass(model, texts, longest, context, free, rng)
        and all(_is_alike_behind(model, end, context, rng) for end in CONTEXTS if end < longest)
    )


def _fewest_projected(model: ResizableTarget) -> int:
    """The least number of rows from which the projection to the vocabulary gives the same bits, up to PROBED."""
    tokens = _tokens(model, PROBED)
    expected = _projected(model, tokens, PROBED)

    def is_alike(number: int) -> bool:
        return np.array_equal(_projected(model, tokens, number), expected[-number:])

    fewest, least = PROBED, 1
    for number in SOME_PROJECTED:
        if not is_alike(number):
            least = number + 1
            break
        fewest = number
    while fewest > least and is_alike(fewest - 1):
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
        if most >= FAST_READING and time.perf_counter() - began > PATIENCE_S:
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
    first, last, shared = texts[0], texts[-1], 0
    if first.tokens[:SHARED] == last.tokens[:SHARED]:
        last.blocks[0], last.end, shared = first.blocks[0], SHARED, SHARED
    while due := [text for text in texts if text.is_due and (text is not last or first.end >= shared)]:
        windows: list[tuple[_Text, int, Window]] = []
        room = model.rows.most
        for text in rng.sample(due, rng.randint(1, len(due))):
            size = min(rng.choice(SIZES), len(text.tokens) - text.end, model.rows.most - MOST_REJECTED)
            rejected = _arbitrary(model, rng.choice((0, 0, 1, MOST_REJECTED)), rng)
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


def _is_alike_in_one_window(model: ResizableTarget, length: int, blocks: Sequence[int], rng: random.Random) -> bool:
    """Feeds a text in one window, then pieces of it over the cache that this has left."""
    tokens, ends = _arbitrary(model, length, rng), [0]
    while ends[-1] < length:
        ends.append(min(ends[-1] + min(rng.choice(PIECES), model.rows.most), length))
    pieces = [
        (begin, end) for begin, end in pairwise(ends) if begin < ALL_PIECES or end == length or rng.random() < SOME
    ]
    logits = model.forward([Window(tokens, 0, blocks, length)])[0]
    expected = [logits[max(begin, end - COMPARED) : end].copy() for begin, end in pieces]
    return all(
        np.array_equal(model.forward([Window(tokens[begin:end], begin, blocks, len(each))])[0], each)
        for (begin, end), each in zip(pieces, expected, strict=True)
    )


def _is_alike_in_a_full_pass(
    model: ResizableTarget,
    texts: Sequence[_Text],
    longest: int,
    context: Sequence[int],
    free: Sequence[int],
    rng: random.Random,
) -> bool:
    """Feeds the ends of the texts once more, together with a wide window that ends an arbitrary context of `longest`
    tokens, and with others in `free` blocks if that leaves room; then feeds the last tokens of the context again."""
    size = min(BEHIND, model.rows.most // (2 * len(texts)))
    begins = [max(len(each.tokens) - size, SHARED if len(each.tokens) > SHARED else 0) for each in texts]
    windows = [
        Window(text.tokens[begin:], begin, text.blocks, len(text.tokens) - begin)
        for text, begin in zip(texts, begins, strict=True)
    ]
    room = model.rows.most - sum(len(window.tokens) for window in windows)
    model.occupy(context)
    wide = _arbitrary(model, min(room, longest // 2), rng)
    windows.append(Window(wide, longest - len(wide), context, min(BEHIND, len(wide))))
    room -= len(wide)
    for first in range(0, len(free), _blocks_for(longest)):
        if room > 0:
            windows.append(Window([0] * min(room, longest), 0, free[first : first + _blocks_for(longest)]))
            room -= longest
    logits = model.forward(windows)
    if not all(
        np.array_equal(each, text.expected[begin:]) for each, text, begin in zip(logits, texts, begins, strict=False)
    ):
        return False
    if longest <= 2 * BEHIND:
        return True
    beside = [Window(texts[0].tokens[:BEHIND], 0, free, BEHIND)]
    cuts: list[Cut] = [((1,) * BEHIND, []), ((2, 1, 3, 2), beside), ((1, 5, 2), [])]
    return _is_alike_in_cuts(model, longest, context, wide[-BEHIND:], logits[len(texts)].copy(), cuts)


def _is_alike_behind(model: ResizableTarget, end: int, blocks: Sequence[int], rng: random.Random) -> bool:
    """Feeds the last tokens of an arbitrary context of `end` tokens, which `blocks` hold: all at once, and in parts."""
    tokens = _arbitrary(model, BEHIND, rng)
    expected = model.forward([Window(tokens, end - BEHIND, blocks, BEHIND)])[0].copy()
    return _is_alike_in_cuts(model, end, blocks, tokens, expected, [((1, 5, 1, 1), [])])


def _is_alike_in_cuts(
    model: ResizableTarget,
    end: int,
    blocks: Sequence[int],
    tokens: Sequence[int],
    expected: NDArray[np.float32],
    cuts: Sequence[Cut],
) -> bool:
    """Feeds tokens up to position `end` once for each cut, which names the sizes of their windows and the other windows
    of their passes."""
    for sizes, beside in cuts:
        for size, at in zip(sizes, accumulate(sizes, initial=0), strict=False):
            window = Window(tokens[at : at + size], end - len(tokens) + at, blocks, size)
            if not np.array_equal(model.forward([window, *beside])[0], expected[at : at + size]):
                return False
    return True


def _arbitrary(model: ResizableTarget, number: int, rng: random.Random) -> list[int]:
    return [rng.randrange(model.vocabulary_size) for _ in range(number)]


def _tokens(model: ResizableTarget, number: int) -> list[int]:
    return np.random.default_rng(SEED).integers(0, model.vocabulary_size, number).tolist()


def _blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)
