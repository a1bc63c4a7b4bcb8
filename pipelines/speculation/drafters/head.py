"""Head: drafts with a small network that reads the target's hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...engine.block_pool import BlockPool, BlockTable, OutOfBlocks
from ...engine.request import Request
from ...engine.sampling import Logits
from ...model.heads.head_model import HeadModel, HeadWindow, States
from .base import Proposal, Score, Wanted, common_length, one_by_one
from .scoring import proposals, scores
from .states_cache import StatesCache

# Initial weights, bias first; those of a draft model.
PRIORS = {"head": (0.7, 1.8, 0.0), "head sampled": (0.4, 0.4, 0.0)}

KEPT_BYTES = 128 << 20  # of states for requests that begin alike: 2,700 tokens for three taps of width 4,096


@dataclass(slots=True)
class _Progress:
    """What is known of one request.

    begin, end: the first position at which the target's hidden states are known, and the one after the last.
    states: a row for each of these positions, followed by room for more.
    first, num_read: the head's cache, `table`, holds the rows of `num_read` positions from `first` on, computed from
        the target's states, and after them those of the drafted tokens `ahead`.
    own: the head's hidden states before the first of these tokens and after each.
    keys: of its blocks in the `StatesCache`.
    """

    begin: int
    end: int
    states: States
    table: BlockTable | None = None
    first: int = 0
    num_read: int = 0
    ahead: list[int] = field(default_factory=list)
    own: list[States] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)

    @property
    def next(self) -> int:
        """The first position that the head has not read."""
        return self.first + self.num_read

    def between(self, start: int, end: int) -> States:
        """The target's states of the positions from `start` to `end`."""
        return self.states[start - self.begin : end - self.begin]

    def add(self, start: int, states: States) -> None:
        """Take the states from a position on; what was known after it is void."""
        num_known, num_wanted = start - self.begin, start - self.begin + len(states)
        if num_wanted > len(self.states):
            room = np.empty((max(num_wanted, 2 * len(self.states)), states.shape[1]), np.float32)
            room[:num_known] = self.states[:num_known]
            self.states = room
        self.states[num_known:num_wanted] = states
        self.end = self.begin + num_wanted

    def forget_before(self, position: int) -> None:
        """Keep the states from a position on, without room for more."""
        self.states = self.between(position, self.end).copy()
        self.begin = position

    def back_to(self, position: int) -> None:
        """Take back what the head has read from a position on."""
        self.num_read = min(self.num_read, max(0, position - self.first))
        self.ahead.clear()
        self.own.clear()


class Head:
    """Drafts with a head such as EAGLE-3's (arXiv 2503.01840), token by token, in a cache of its own.

    The row at a position is computed from the target's hidden state there and the next token, and predicts the token
    after that. After the accepted text the head continues from its own hidden states; these rows are computed again
    once the target's states are known. So each token of a draft takes a pass, no matter which drafter proposed it.

    It samples with the target's settings and noise, as a draft model does (see `DraftModel`). Of a long text it reads
    the last `model.reach` tokens, and begins again with them when it has read twice as many. The target computes no
    states for a prefix that is in its cache, such as the previous turns of a conversation: they are kept from the
    request that computed them, as far as there is room (see `StatesCache`). It proposes nothing where the states of the
    last tokens are missing, where its cache is full, after `depth` drafted tokens, and where the answer's structure
    allows none of the tokens that it knows.
    """

    name = "head"
    reads_ahead = False

    def __init__(self, model: HeadModel, pool: BlockPool, vocabulary_size: int) -> None:
        self._model = model
        self._pool = pool
        self._vocabulary_size = vocabulary_size  # of the target
        self._reach = model.reach
        self.depth = model.depth
        self._progress: dict[Request, _Progress] = {}
        self._kept = StatesCache(KEPT_BYTES, pool.block_size)

    def read(self, request: Request, start: int, states: NDArray[np.float32]) -> None:
        progress = self._progress.get(request)
        if progress is None or not progress.begin <= start <= progress.end:
            self.release(request)
            known, keys = self._kept.before(start, request.tokens, self._reach)
            known = states[:0] if known is None else known
            progress = self._progress[request] = _Progress(start - len(known), start, known, keys=keys)
        progress.add(start, states)
        self._kept.keep(progress.keys, request.tokens, progress.begin, progress.between(progress.begin, progress.end))
        if progress.end - progress.begin > 2 * self._reach + self._pool.block_size:
            unkept = len(progress.keys) * self._pool.block_size  # where the block begins that is not full yet
            progress.forget_before(min(progress.end - self._reach, unkept))

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        return one_by_one(self, request, ahead)

    def generate(self, wanted: Wanted) -> list[Proposal | None]:
        return proposals(self.name, wanted, self._run(wanted, only_last=True))

    def score(self, wanted: Wanted) -> list[list[Score] | None]:
        wanted = [(request, ahead[: self.depth]) for request, ahead in wanted]
        last = None if self.depth is None else self.depth - 1
        read = [(request, ahead[:last]) for request, ahead in wanted]
        return scores(self.name, wanted, self._run(read, only_last=False))

    def num_behind(self, request: Request, ahead: Sequence[int] = ()) -> int:
        progress, last = self._progress.get(request), len(request.tokens) - 1
        if progress is None:
            return 1
        num_unread = last - progress.next if self._goes_on(progress, last) else min(last - progress.begin, self._reach)
        known = progress.ahead if num_unread <= 0 else []
        return max(1, num_unread + len(ahead) - common_length(known, [*ahead]))

    def release(self, request: Request) -> None:
        progress = self._progress.pop(request, None)
        if progress is not None and progress.table is not None:
            self._pool.close(progress.table)

    def forget(self) -> None:
        """Drop the states that are kept of ended requests."""
        self._kept.clear()

    def _run(self, wanted: Wanted, only_last: bool) -> list[list[Logits] | None]:
        """Logits after each request and after each token ahead of it, or at least the last of these."""
        found: list[list[Logits] | None] = []
        running: dict[int, _Progress] = {}
        for i, (request, ahead) in enumerate(wanted):
            progress = self._prepared(request, ahead, only_last)
            found.append(None if progress is None else [])
            if progress is not None:
                running[i] = progress
        while running:
            windows = [_next_window(*wanted[i], progress) for i, progress in running.items()]
            logits, states = self._model.forward(windows)
            for (i, progress), window, row, own in zip(list(running.items()), windows, logits, states, strict=True):
                request, ahead = wanted[i]
                if progress.next < len(request.tokens) - 1:
                    progress.num_read += len(window.tokens)
                else:
                    progress.ahead += window.tokens
                progress.own.append(own[np.newaxis].copy())
                rows = found[i]
                assert rows is not None
                rows.append(self._of_target(row))
                if len(progress.ahead) == len(ahead):
                    del running[i]
        return [rows and self._allowed(*each, rows) for each, rows in zip(wanted, found, strict=True)]

    def _prepared(self, request: Request, ahead: Sequence[int], only_last: bool) -> _Progress | None:
        """The progress of a request, with room in its cache and a row left to compute; None if nothing can be done."""
        progress, last = self._progress.get(request), len(request.tokens) - 1
        if progress is None or progress.end < last or last - progress.begin < 1:
            return None
        if self.depth is not None and len(ahead) >= self.depth:
            return None
        if not self._goes_on(progress, last):
            if progress.table is not None:
                self._pool.close(progress.table)
                progress.table = None
            progress.first, progress.num_read = max(progress.begin, last - self._reach), 0
            progress.back_to(progress.first)
        num_slots = last - progress.first + len(ahead)
        try:
            if progress.table is None:
                progress.table, _ = self._pool.open((), num_slots)
            else:
                self._pool.grow(progress.table, num_slots)
        except OutOfBlocks:
            return None
        if progress.next < last or not only_last:
            progress.back_to(min(progress.next, last - 1))
        else:
            num_same = min(common_length(progress.ahead, [*ahead]), len(ahead) - 1)
            if num_same < 0 or not progress.own:
                progress.back_to(last - 1)
            del progress.ahead[max(0, num_same) :], progress.own[max(0, num_same) + 1 :]
        return progress

    def _goes_on(self, progress: _Progress, last: int) -> bool:
        """Whether the cache can be added to; otherwise the head begins again."""
        is_whole = progress.table is not None and progress.next >= progress.begin
        return is_whole and last - progress.first <= 2 * self._reach

    def _of_target(self, logits: Logits) -> Logits:
        """The head's logits over the target's vocabulary."""
        spread = np.full(self._vocabulary_size, -np.inf, np.float32)
        spread[self._model.vocabulary] = logits
        return spread

    def _allowed(self, request: Request, ahead: Sequence[int], rows: list[Logits]) -> list[Logits] | None:
        """The rows; None if the answer's structure allows no token in one of them."""
        before = range(len(ahead) + 1 - len(rows), len(ahead) + 1)
        if request.constraint is None or all(
            np.isfinite(request.restricted(row, ahead[:i]).max()) for i, row in zip(before, rows, strict=True)
        ):
            return rows
        return None


def _next_window(request: Request, ahead: Sequence[int], progress: _Progress) -> HeadWindow:
    """What the head reads next: the target's states, or a token ahead with the head's own."""
    assert progress.table is not None
    last = len(request.tokens) - 1
    if progress.next < last:
        tokens, states = request.tokens[progress.next + 1 :], progress.between(progress.next, last)
        return HeadWindow(tokens, progress.num_read, progress.table.blocks, states)
    place = progress.num_read + len(progress.ahead)
    return HeadWindow([ahead[len(progress.ahead)]], place, progress.table.blocks, progress.own[-1], is_own=True)
