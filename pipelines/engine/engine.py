"""Engine: serves all running requests with one pass of the target at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from ..errors import CacheTooSmall
from ..model.paged_model import PREFILL_ROWS, PagedModel, Window
from ..speculation.draft import Draft
from ..speculation.planner import LONGEST, Planner
from .backend import Backend, Load
from .block_pool import BlockPool, BlockTable, OutOfBlocks
from .request import Request
from .trace import TARGET, PassRecord
from .verify import verify

PREFILL_ROWS_BESIDE_DECODING = 32  # delays running answers; beyond 64 kernels get slower


@dataclass(frozen=True, slots=True)
class _Plan:
    """One request's part in a pass; `draft` is None for a chunk of its prompt."""

    request: Request
    window: Window
    draft: Draft | None = None


class Engine(Backend):
    """Decodes all running requests with one loop. Plain decoding is an empty draft, prefill a window without one.

    Requests are admitted in order and get cache blocks as they grow. When no block is free, the youngest request goes
    back to the front of the queue and is computed again later, to the same tokens. Long prompts are read in chunks, so
    that running answers continue meanwhile. Of several prompts that begin alike, one is read and the others take over
    its blocks.

    Any thread that waits for a request calls `step`; calls from several threads take turns, and each serves all
    requests. So the state of a request must be read under the `lock`.
    """

    def __init__(self, target: PagedModel, pool: BlockPool, planner: Planner) -> None:
        super().__init__()
        self._target = target
        self._pool = pool
        self._planner = planner
        self._running: list[Request] = []
        self._ended: list[Request] = []  # during the current step, which still uses their blocks
        self._is_stepping = False
        self._num_borrowing = 0  # callers of `borrowed` that wait for blocks or hold them

    def _check(self, request: Request) -> None:
        capacity = self._pool.num_blocks * self._pool.block_size
        if self._pool.blocks_for(request.num_slots) > self._pool.num_blocks:
            raise CacheTooSmall(
                f"The request needs a cache of {request.num_slots} tokens ({request.num_prompt_tokens} of the prompt "
                f"and up to {request.max_new_tokens} new ones), and the cache holds {capacity}: lower max_new_tokens, "
                f"shorten the prompt, or load the pair with cache_tokens={request.num_slots} or more."
            )

    @property
    def load(self) -> Load:
        used = 1 - self._pool.num_free / self._pool.num_blocks
        return Load(len(self._arrived) + len(self._waiting), len(self._running), used, self._num_passes)

    def step(self) -> None:
        """Admit requests, draft, run one pass of the target, and keep the tokens that it confirms."""
        with self.lock:
            self._is_stepping = True
            try:
                self._step()
            finally:
                self._is_stepping = False
                while self._ended:
                    self._retire(self._ended.pop())

    @contextmanager
    def borrowed(self, num_tokens: int, *pools: BlockPool) -> Iterator[list[list[int]]]:
        """Blocks of each pool for so many tokens, to run models outside of requests, none of which is served meanwhile.

        Until every pool has room, requests that have begun are served and nothing is held, since they may need it. New
        requests wait, or there might never be room.
        """
        with self.lock:
            self._num_borrowing += 1
        try:
            while True:
                with self.lock, ExitStack() as held:
                    try:
                        tables = [held.enter_context(_opened(pool, num_tokens)) for pool in pools]
                    except OutOfBlocks:
                        held.close()
                        self.step()
                        continue
                    yield [table.blocks for table in tables]
                    return
        finally:
            with self.lock:
                self._num_borrowing -= 1

    def _step(self) -> None:
        began, draft_s = time.perf_counter(), self._planner.model_s
        self._admit()
        plans = self._plans()
        if not plans:
            return
        fed = time.perf_counter()
        try:
            logits = self._target.forward([plan.window for plan in plans])
        except Exception as error:
            for plan in plans:
                self._fail(plan.request, error)
            return
        target_s = time.perf_counter() - fed
        self._num_passes += 1
        draft_s = self._planner.model_s - draft_s
        self._postprocess(plans, logits, PassRecord(began, fed + target_s, target_s, draft_s))

    def _admit(self) -> None:
        self._queue_arrived()
        while self._waiting:
            request = self._waiting[0]  # preempted requests come before new ones
            if self._num_borrowing and request.num_taken_over is None:
                return
            spare = len(self._running)  # each will soon need another block
            if self._pool.num_free < self._pool.blocks_for(len(request.tokens)) + spare:
                return
            self._waiting.popleft()
            with self._failing(request):
                request.table, cached = self._pool.open(request.tokens, len(request.tokens))
                request.num_cached = cached
                if request.num_taken_over is None:
                    request.num_taken_over = cached
                self._running.append(request)

    def _plans(self) -> list[_Plan]:
        """The parts of the next pass. The oldest requests come first where blocks or rows are short.

        Rows are given to requests with a token due, then to chunks of prompts, then to drafts, up to the most that the
        target takes. If more tokens are due than that, the requests that have waited longest come first.
        """
        for request in list(self._running):
            self._make_room(request)
        writing = [request for request in self._running if len(request.tokens) - request.num_cached <= 1]
        reading = [request for request in self._running if request not in writing]
        room = self._target.rows.most
        kept_free = min(PREFILL_ROWS_BESIDE_DECODING, room // 2) if reading else 0
        if len(writing) > room - kept_free:
            writing = sorted(writing, key=_last_served)[: room - kept_free]
        drafts = [self._draft(request) for request in writing]
        chunks = self._prefill(reading, room - len(drafts), bool(drafts))
        num_read = sum(len(plan.window.tokens) for plan in chunks)
        self._planner.draft(drafts, num_read, room)
        return [plan for plan in (*map(self._decode, drafts), *chunks) if not plan.request.finished]

    def _make_room(self, request: Request) -> None:
        """Get the blocks that a request needs; if none are free, preempt the youngest request."""
        while request in self._running:
            try:
                with self._failing(request):
                    self._pool.grow(request.table, len(request.tokens))
                    request.num_cached = self._pool.follow(request.table, request.tokens, request.num_cached)
                return
            except OutOfBlocks:
                youngest = self._running.pop()
                self._pool.close(youngest.table)
                youngest.table, youngest.num_cached = BlockTable(), 0
                self._waiting.appendleft(youngest)

    def _prefill(self, requests: list[Request], room: int, is_writing: bool) -> list[_Plan]:
        """The next chunks of prompts, in whole tiles if a part of a tile would cost as much as all of it."""
        if is_writing:
            return self._chunks(requests, min(room, PREFILL_ROWS_BESIDE_DECODING))
        plans, cost = self._chunks(requests, min(room, PREFILL_ROWS)), self._planner.cost
        rows = sum(len(plan.window.tokens) for plan in plans)
        if cost is not None and (whole := cost.without_part_tile(rows)) < rows:
            return self._chunks(requests, whole)
        return plans

    def _chunks(self, requests: list[Request], room: int) -> list[_Plan]:
        """Chunks of up to `room` tokens together. A prompt that begins like one being read waits for its blocks."""
        plans: list[_Plan] = []
        begun: set[object] = set()
        for request in requests:
            start = request.num_cached
            end = min(len(request.tokens), start + room)
            next_block = None
            with self._failing(request):
                next_block = self._pool.next_block(request.table, request.tokens, start)
            if request.finished or start == end or next_block in begun:
                continue
            if next_block is not None:
                begun.add(next_block)
            plans.append(_Plan(request, Window(request.tokens[start:end], start, request.table.blocks)))
            room -= end - start
        return plans

    def _draft(self, request: Request) -> Draft:
        limit = min(LONGEST, request.max_new_tokens - request.num_new - 1)
        return Draft(request, context=len(request.tokens) - 1, limit=limit)

    def _decode(self, draft: Draft) -> _Plan:
        request, tokens = draft.request, draft.request.tokens
        try:
            with self._failing(request):
                self._pool.grow(request.table, len(tokens) + len(draft.proposals))
        except OutOfBlocks:
            draft.cut(max(0, len(request.table.blocks) * self._pool.block_size - len(tokens)))
        window = Window([tokens[-1], *draft.tokens], len(tokens) - 1, request.table.blocks, draft.rows)
        return _Plan(request, window, draft)

    def _postprocess(self, plans: list[_Plan], logits: list[NDArray[np.float32]], record: PassRecord) -> None:
        drafts: list[Draft] = []
        kept: list[list[int]] = []
        for plan, rows in zip(plans, logits, strict=True):
            if plan.request.finished:  # cancelled during the pass
                continue
            num_before = plan.request.num_new
            try:
                self._keep(plan, rows, record)
            except Exception as error:
                self._fail(plan.request, error)
                continue
            if plan.draft is not None:
                drafts.append(plan.draft)
                kept.append(plan.request.new_tokens[num_before:])
        target_ms = beside_ms = None
        if len(drafts) == len(plans):
            target_ms = 1e3 * record.target_s
            beside_ms = 1e3 * (time.perf_counter() - record.began) - target_ms
        self._planner.observe(drafts, kept, target_ms, beside_ms)
        for plan in plans:
            if plan.request.finished:
                self._retire(plan.request)

    def _keep(self, plan: _Plan, rows: NDArray[np.float32], record: PassRecord) -> None:
        """Keep the target's tokens as far as the draft predicted them, and the one after."""
        request, window = plan.request, plan.window
        proposed, drafted = ([], []) if plan.draft is None else (plan.draft.tokens, plan.draft.sources)
        window_end = window.start + len(window.tokens)
        num_before = request.num_new
        if window_end >= len(request.tokens):
            kept = verify(rows[: len(proposed) + 1], proposed, request.choose)
            foreseen = [token == drafted_token for token, drafted_token in zip(kept, proposed, strict=False)]
            request.extend(kept, [*compress(drafted, foreseen), TARGET][: len(kept)], rows)
        request.num_cached = min(window_end, len(request.tokens) - 1)  # rejected tokens are overwritten
        self._pool.publish(request.table, request.tokens, request.num_cached)
        sources = tuple(request.sources[num_before:])
        ended, num_rows = time.perf_counter(), len(window.tokens)
        request.trace.append(replace(record, ended=ended, num_rows=num_rows, drafted=tuple(drafted), sources=sources))

    @contextmanager
    def _failing(self, request: Request) -> Iterator[None]:
        """End the request on an error. OutOfBlocks is left to the caller."""
        try:
            yield
        except OutOfBlocks:
            raise
        except Exception as error:
            self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        request.error = error
        if request in self._running:
            self._running.remove(request)  # so it gets no part in this pass
        self._retire(request)

    def _retire(self, request: Request) -> None:
        if self._is_stepping:
            self._ended.append(request)
            return
        if request in self._running:
            self._running.remove(request)
        if request in self._waiting:
            self._waiting.remove(request)
        self._pool.close(request.table)
        request.table = BlockTable()
        self._planner.release(request)


def _last_served(request: Request) -> float:
    return request.trace[-1].ended if request.trace else 0.0


@contextmanager
def _opened(pool: BlockPool, num_tokens: int) -> Iterator[BlockTable]:
    table, _ = pool.open((), num_tokens)
    try:
        yield table
    finally:
        pool.close(table)
