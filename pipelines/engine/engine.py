"""Engine: one pass of the target serves every running request."""

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

PREFILL_ROWS_BESIDE_DECODING = 32  # what a running answer waits for at a time; kernels change for the worse above 64


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one request brings to a pass; `draft` is None where only a part of its prompt is read."""

    request: Request
    window: Window
    draft: Draft | None = None


class Engine(Backend):
    """Decodes all running requests with one loop. Plain decoding is the empty draft, prefill a window without one.

    Requests are admitted in order and get blocks as they grow. Where none are left, the youngest goes back to the front
    of the queue and is computed again later, to the same tokens. Long prompts are fed in chunks, so that the answers
    that are being written go on meanwhile, and of several requests that begin alike one reads for all.

    Whoever waits for a request calls `step`; calls from several threads take turns, and each serves everybody. So what
    a request has come to is read under the `lock`.
    """

    def __init__(self, target: PagedModel, pool: BlockPool, planner: Planner) -> None:
        super().__init__()
        self._target = target
        self._pool = pool
        self._planner = planner
        self._running: list[Request] = []
        self._ended: list[Request] = []  # in the step that is on; nothing is taken from under it
        self._is_stepping = False
        self._num_borrowing = 0  # who wait for blocks, or have them

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
        """Admit what fits, draft, run one pass, keep what the target confirms."""
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
        """Blocks of each pool for so many tokens, to try models with; meanwhile nobody is served.

        Serves the requests that have begun until every pool has room, and holds nothing until then: they may need it.
        The others wait, or there might never be room.
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
            request = self._waiting[0]  # who was put back stands before all who never ran
            if self._num_borrowing and request.num_taken_over is None:
                return
            spare = len(self._running)  # each will soon need a block more
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
        """What each running request feeds in the next pass; the oldest come first where something is short.

        Together they have at most as many rows as the target takes: those that are due, then chunks of prompts, then
        drafts. Where more requests are due than there is room for, those that have waited longest come first.
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
        """Get the blocks that a request cannot do without; where none are free, the youngest has to give way."""
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
        """The next chunks of prompts, in whole tiles where the last part of one would cost as much as all of it."""
        if is_writing:
            return self._chunks(requests, min(room, PREFILL_ROWS_BESIDE_DECODING))
        plans, cost = self._chunks(requests, min(room, PREFILL_ROWS)), self._planner.cost
        rows = sum(len(plan.window.tokens) for plan in plans)
        if cost is not None and (whole := cost.without_part_tile(rows)) < rows:
            return self._chunks(requests, whole)
        return plans

    def _chunks(self, requests: list[Request], room: int) -> list[_Plan]:
        """Up to `room` tokens. Who begins like another that is being read waits, and takes its blocks over."""
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
            if plan.request.finished:  # dropped in the middle of this pass
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
        """Take the tokens that the target writes, for as long as the draft foresaw them, and the one after."""
        request, window = plan.request, plan.window
        proposed, drafted = ([], []) if plan.draft is None else (plan.draft.tokens, plan.draft.sources)
        window_end = window.start + len(window.tokens)
        num_before = request.num_new
        if window_end >= len(request.tokens):
            kept = verify(rows[: len(proposed) + 1], proposed, request.choose)
            foreseen = [token == drafted_token for token, drafted_token in zip(kept, proposed, strict=False)]
            request.extend(kept, [*compress(drafted, foreseen), TARGET][: len(kept)], rows)
        request.num_cached = min(window_end, len(request.tokens) - 1)  # what was rejected is written over
        self._pool.publish(request.table, request.tokens, request.num_cached)
        sources = tuple(request.sources[num_before:])
        ended, num_rows = time.perf_counter(), len(window.tokens)
        request.trace.append(replace(record, ended=ended, num_rows=num_rows, drafted=tuple(drafted), sources=sources))

    @contextmanager
    def _failing(self, request: Request) -> Iterator[None]:
        """What breaks for one request ends that one only; that blocks are short is for the caller to deal with."""
        try:
            yield
        except OutOfBlocks:
            raise
        except Exception as error:
            self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        request.error = error
        if request in self._running:
            self._running.remove(request)  # no plan of this step is made for it
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
