"""Engine: serves all running requests with one pass of the target at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import compress, zip_longest

import numpy as np
from numpy.typing import NDArray

from ..model.target import Target, Window
from ..speculation.draft import LONGEST, Draft
from ..speculation.planner import Planner
from .backend import Load, QueueingBackend, Room
from .block_pool import BlockPool, BlockTable, OutOfBlocks
from .request import Request
from .sampling import Logits
from .scheduler import Part, Schedule, Scheduler
from .trace import TARGET, PassRecord
from .verify import verify


class Engine(QueueingBackend):
    """Serves all running requests with one loop. In plain decoding the drafts are empty; a chunk of a prompt has none.

    room: how many tokens a request can have; as many as `pool` holds if it is None.
    """

    def __init__(self, target: Target, pool: BlockPool, planner: Planner, room: Room | None = None) -> None:
        super().__init__()
        self._room = room or Room.of(pool)
        self._target = target
        self._pool = pool
        self._planner = planner
        self._scheduler = Scheduler(self._waiting, pool, target.rows)
        self._is_stepping = False
        self._num_taken_over = 0  # the target's number after the last pass
        self._num_borrowing = 0  # callers of `borrowed` that wait for blocks or hold them

    def step(self) -> None:
        """Run one pass of the target: schedule, draft, forward, verify, learn."""
        with self.lock, self._stepping():
            began, model_s = time.perf_counter(), self._planner.model_s
            self._queue_arrived()
            admits_new, num_owed = not self._num_borrowing, self._planner.num_owed_rows
            schedule = self._scheduler.schedule(self._planner.cost, admits_new, num_owed)
            parts = self._draft(schedule)
            logits, target_s = self._forward(parts)
            if logits:
                draft_s = self._planner.model_s - model_s
                self._postprocess(parts, logits, PassRecord(began, time.perf_counter(), target_s, draft_s))

    @property
    def load(self) -> Load:
        used = 1 - self._pool.num_free / self._pool.num_blocks
        num_waiting = len(self._arrived) + len(self._waiting)
        return Load(num_waiting, len(self._scheduler.running), used, self._num_passes)

    @contextmanager
    def borrowed(self, num_tokens: int, *pools: BlockPool) -> Iterator[list[list[int]]]:
        """Blocks of each pool for `num_tokens` tokens, or all that it has, to run models outside of requests. No
        request is served meanwhile.

        Until every pool has room, requests that have begun are served and nothing is held, since they may need it. New
        requests wait, or there might never be room.
        """
        with self.lock:
            self._num_borrowing += 1
        try:
            while True:
                with self.lock, ExitStack() as held:
                    try:
                        tables = [held.enter_context(_opened(pool, min(num_tokens, pool.num_tokens))) for pool in pools]
                    except OutOfBlocks:
                        held.close()
                        self.step()
                        continue
                    yield [table.blocks for table in tables]
                    return
        finally:
            with self.lock:
                self._num_borrowing -= 1

    def _check(self, request: Request) -> None:
        self._room.require(request)

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Retire requests that end during a step only after it, even if the destructor of a stream cancels them."""
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False
            for request in [*self._scheduler.running, *self._waiting]:
                if request.finished:
                    self._retire(request)

    def _retire(self, request: Request) -> None:
        if not self._is_stepping:
            self._scheduler.remove(request)
            self._planner.release(request)

    def _draft(self, schedule: Schedule) -> list[Part]:
        """The parts of the next pass."""
        drafts = [_empty_draft(request) for request in schedule.decoding]
        self._planner.draft(drafts, schedule.num_prefill_rows, self._scheduler.rows.most, schedule.num_owed_rows)
        parts = [*map(self._scheduler.place, drafts), *schedule.prefill]
        return [part for part in parts if not part.request.finished]

    def _forward(self, parts: Sequence[Part]) -> tuple[list[NDArray[np.float32]], float]:
        """Logits for each part, and the target's time in seconds. If the pass fails, so does every request in it."""
        if not parts:
            return [], 0.0
        windows = [part.window for part in parts]
        num_filling = self._planner.fill(sum(len(window.tokens) for window in windows))
        if num_filling:
            windows.append(Window.filling(num_filling))
        began = time.perf_counter()
        try:
            logits = self._target.forward(windows)[: len(parts)]
        except Exception as error:
            for part in parts:
                part.request.error = error
            return [], 0.0
        self._num_passes += 1
        return logits, time.perf_counter() - began

    def _postprocess(self, parts: Sequence[Part], logits: list[NDArray[np.float32]], record: PassRecord) -> None:
        """Keep the tokens that the target confirms, and learn from the pass."""
        drafts: list[Draft] = []
        kept: list[list[int]] = []
        states = self._target.hidden_states()[: len(parts)]
        for part, rows, of_layers in zip_longest(parts, logits, states):
            request, num_before = part.request, part.request.num_new
            if request.finished:  # cancelled during the pass
                continue
            try:
                self._keep(part, rows, record)
                self._planner.read(request, part.window, rows, of_layers)
            except Exception as error:
                request.error = error
                continue
            if part.draft is not None:
                drafts.append(part.draft)
                kept.append(request.new_tokens[num_before:])
        target_ms = beside_ms = None
        if len(drafts) == len(parts):
            target_ms = 1e3 * record.target_s
            beside_ms = 1e3 * (time.perf_counter() - record.began) - target_ms
        if self._target.num_taken_over > self._num_taken_over:  # the pass was shorter than its rows suggest
            self._num_taken_over, target_ms = self._target.num_taken_over, None
        self._planner.observe(drafts, kept, target_ms, beside_ms)

    def _keep(self, part: Part, rows: NDArray[np.float32], record: PassRecord) -> None:
        """Keep the target's tokens as far as the draft predicted them, and the one after."""
        request, window = part.request, part.window
        proposed, drafted = ([], []) if part.draft is None else (part.draft.tokens, part.draft.sources)
        num_before = request.num_new
        if window.start + len(window.tokens) >= len(request.tokens):
            kept = verify(rows[: len(proposed) + 1], proposed, _chooser(request, part.draft))
            foreseen = [token == drafted_token for token, drafted_token in zip(kept, proposed, strict=False)]
            request.extend(kept, [*compress(drafted, foreseen), TARGET][: len(kept)], rows)
        self._scheduler.computed(part)
        sources = tuple(request.sources[num_before:])
        ended, num_rows = time.perf_counter(), len(window.tokens)
        request.trace.append(replace(record, ended=ended, num_rows=num_rows, drafted=tuple(drafted), sources=sources))


def _chooser(request: Request, draft: Draft | None) -> Callable[[Logits, list[int]], int]:
    """How the target chooses its tokens: without regard to the draft, unless the request's acceptance rule is lossy."""
    if draft is None or not request.config.lossy:
        return request.choose

    def choose(logits: Logits, kept: list[int]) -> int:
        if len(kept) == len(draft.proposals):
            return request.choose(logits, kept)
        proposal = draft.proposals[len(kept)]
        return request.choose_beside(proposal.token, proposal.drawn_from, logits, kept)

    return choose


def _empty_draft(request: Request) -> Draft:
    limit = min(LONGEST, request.max_new_tokens - request.num_new - 1)
    return Draft(request, context=len(request.tokens) - 1, limit=limit)


@contextmanager
def _opened(pool: BlockPool, num_tokens: int) -> Iterator[BlockTable]:
    table, _ = pool.open((), num_tokens)
    try:
        yield table
    finally:
        pool.close(table)
