"""Scheduler: which requests take part in a pass, with which rows and in which blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..model.target import PREFILL_ROWS, Rows, Window
from ..speculation.cost import CostModel
from ..speculation.draft import Draft
from .block_pool import BlockPool, BlockTable, OutOfBlocks
from .request import Request

PREFILL_ROWS_BESIDE_DECODING = 32  # more would delay running answers; beyond 64 kernels also get slower


@dataclass(frozen=True, slots=True)
class Part:
    """One request's part in a pass; `draft` is None for a chunk of its prompt."""

    request: Request
    window: Window
    draft: Draft | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The next pass before drafts are added: requests with a token due, and chunks of prompts."""

    decoding: Sequence[Request]
    prefill: Sequence[Part]

    @property
    def num_prefill_rows(self) -> int:
        return sum(len(part.window.tokens) for part in self.prefill)

    @property
    def num_owed_rows(self) -> int:
        """Prompt rows beyond what a pass with plain decoding would read."""
        return max(0, self.num_prefill_rows - PREFILL_ROWS_BESIDE_DECODING) if self.decoding else 0


class Scheduler:
    """Admits requests in order, and gives them blocks of `pool` as they grow and rows of a pass as `rows` allows.

    When no block is free, the youngest request goes back to the front of `waiting` and is computed again later, to the
    same tokens. Long prompts are read in chunks, so that running answers continue meanwhile. Of several prompts that
    begin alike, one is read and the others take over its blocks.

    If managing a request's blocks fails, the request gets the error and takes part in no further pass. Finished
    requests keep their blocks until `remove`, since the pass that is under way may still use them.
    """

    def __init__(self, waiting: deque[Request], pool: BlockPool, rows: Rows) -> None:
        self.waiting = waiting
        self.running: list[Request] = []
        self._pool = pool
        self.rows = rows

    def schedule(self, cost: CostModel | None, admits_new: bool = True, num_owed: int = 0) -> Schedule:
        """Admit what has room, and divide the next pass. The oldest requests come first where blocks or rows are short.

        Rows are given to requests with a token due, then to chunks of prompts; what is left is for drafts. If more
        tokens are due than there are rows for, the requests that have waited longest come first.

        cost: what rows of prompts cost, None if not known yet.
        admits_new: whether to admit requests that have not begun.
        num_owed: additional rows for chunks of prompts that share a pass with answers (see `OwedRows`).
        """
        for request in self.running:
            self._pool.shrink(request.table, len(request.tokens))  # others may need what a rejected draft took
        self._admit(admits_new)
        for request in list(self.running):
            self._make_room(request)
        running = [request for request in self.running if not request.finished]
        decoding = [request for request in running if len(request.tokens) - request.num_cached <= 1]
        reading = [request for request in running if request not in decoding]
        kept_free = min(PREFILL_ROWS_BESIDE_DECODING, self.rows.most // 2) if reading else 0
        if len(decoding) > self.rows.most - kept_free:
            decoding = sorted(decoding, key=_last_served)[: self.rows.most - kept_free]
        return Schedule(decoding, self._prefill(reading, len(decoding), cost, num_owed))

    def place(self, draft: Draft) -> Part:
        """A request's last token and the draft after it, which is cut where no block is free for it."""
        request, tokens = draft.request, draft.request.tokens
        try:
            with _failing(request):
                self._pool.grow(request.table, len(tokens) + len(draft.proposals))
        except OutOfBlocks:
            draft.cut(max(0, len(request.table.blocks) * self._pool.block_size - len(tokens)))
        window = Window([tokens[-1], *draft.tokens], len(tokens) - 1, request.table.blocks, draft.rows)
        return Part(request, window, draft)

    def computed(self, part: Part) -> None:
        """Note how much of a request is in the cache after a pass; rejected tokens will be overwritten."""
        request, window = part.request, part.window
        request.num_cached = min(window.start + len(window.tokens), len(request.tokens) - 1)
        self._pool.publish(request.table, request.tokens, request.num_cached)

    def remove(self, request: Request) -> None:
        """Take a request out, with its blocks."""
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)
        self._close(request)

    def _admit(self, admits_new: bool) -> None:
        while self.waiting:
            request = self.waiting[0]  # preempted requests come before new ones
            if not admits_new and request.num_taken_over is None:
                return
            spare = len(self.running)  # each will soon need another block
            if self._pool.num_free < self._pool.blocks_for(len(request.tokens)) + spare:
                return
            self.waiting.popleft()
            self.running.append(request)
            with _failing(request):
                request.table, request.num_cached = self._pool.open(request.tokens, len(request.tokens))
                if request.num_taken_over is None:
                    request.num_taken_over = request.num_cached

    def _make_room(self, request: Request) -> None:
        """Get the blocks that a request needs; if none are free, preempt the youngest request."""
        while request in self.running and not request.finished:
            try:
                with _failing(request):
                    self._pool.grow(request.table, len(request.tokens))
                    request.num_cached = self._pool.follow(request.table, request.tokens, request.num_cached)
                return
            except OutOfBlocks:
                youngest = self.running.pop()
                self._close(youngest)
                self.waiting.appendleft(youngest)

    def _close(self, request: Request) -> None:
        self._pool.close(request.table)
        request.table, request.num_cached = BlockTable(), 0

    def _prefill(
        self, requests: Sequence[Request], num_decoding: int, cost: CostModel | None, num_owed: int
    ) -> list[Part]:
        """The next chunks of prompts, in whole tiles if a part of a tile would cost as much as all of it."""
        if self.rows.whole_prompt is not None:
            return [] if num_decoding else self._chunks(requests[:1], self.rows.whole_prompt)
        room = self.rows.most - num_decoding
        if num_decoding:
            return self._chunks(requests, min(room, PREFILL_ROWS_BESIDE_DECODING + num_owed))
        parts = self._chunks(requests, min(room, PREFILL_ROWS))
        rows = sum(len(part.window.tokens) for part in parts)
        if cost is not None and (whole := cost.without_part_tile(rows)) < rows:
            return self._chunks(requests, whole)
        return parts

    def _chunks(self, requests: Sequence[Request], room: int) -> list[Part]:
        """Chunks of up to `room` tokens together. A prompt that begins like one being read waits for its blocks."""
        parts: list[Part] = []
        begun: set[object] = set()
        for request in requests:
            start = request.num_cached
            end = min(len(request.tokens), start + room)
            next_block = None
            with _failing(request):
                next_block = self._pool.next_block(request.table, request.tokens, start)
            if request.finished or start == end or next_block in begun:
                continue
            if next_block is not None:
                begun.add(next_block)
            parts.append(Part(request, Window(request.tokens[start:end], start, request.table.blocks)))
            room -= end - start
        return parts


def _last_served(request: Request) -> float:
    return request.trace[-1].ended if request.trace else 0.0


@contextmanager
def _failing(request: Request) -> Iterator[None]:
    """End the request on an error. OutOfBlocks is left to the caller."""
    try:
        yield
    except OutOfBlocks:
        raise
    except Exception as error:
        request.error = error
