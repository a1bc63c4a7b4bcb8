"""Engine: one pass of the target serves every running request."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from .block_pool import BlockPool, OutOfBlocks, Table
from .drafters.base import Draft, Drafter
from .errors import CacheTooSmall
from .exactness import is_exact
from .paged_model import PREFILL_ROWS, PagedModel, Window
from .sequence import CANCELLED, TARGET, Sequence
from .trace import PassRecord
from .verify import verify

FEWEST_ROWS = 2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one sequence brings to a pass."""

    sequence: Sequence
    draft: Draft
    window: Window


class Engine:
    """Decodes all running sequences with one loop. Plain decoding is the empty draft, prefill a window without one.

    Logits are bitwise the same however tokens are cut into passes, as long as each sequence has at least two rows in a
    pass: a single row takes another attention kernel. So where one token is due and nothing is drafted, the token
    before it is fed again and its key and value are written over with the same bytes. `exact=False` gives that up.

    Whoever waits for a sequence calls `step`; calls from several threads take turns, and each serves everybody. So what
    a sequence has come to is read under the `lock`.
    """

    def __init__(
        self, target: PagedModel, pool: BlockPool, drafters: Mapping[str, Drafter], exact: bool = True
    ) -> None:
        self._target = target
        self._pool = pool
        self._drafters = drafters
        self._fewest_rows = FEWEST_ROWS if exact else 1
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.lock = RLock()

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises CacheTooSmall where it could not even run alone."""
        capacity = self._pool.num_blocks * self._pool.block_size
        if self._pool.blocks_for(sequence.num_slots) > self._pool.num_blocks:
            raise CacheTooSmall(
                f"The request needs a cache of {sequence.num_slots} tokens ({sequence.num_prompt_tokens} of the prompt "
                f"and up to {sequence.max_new_tokens} new ones), and the cache holds {capacity}: lower max_new_tokens, "
                f"shorten the prompt, or load the pair with cache_tokens={sequence.num_slots} or more."
            )
        with self.lock:
            self._waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence at once and free what it holds; a finished one is left as it is."""
        with self.lock:
            if not sequence.finished:
                sequence.finish_reason = CANCELLED
                self._retire(sequence)

    def step(self) -> None:
        """Admit what fits, draft, run one pass, keep what the target confirms."""
        with self.lock:
            self._admit()
            plans = [self._plan(sequence) for sequence in self._running]
            if not plans:
                return
            began = time.perf_counter()
            try:
                logits = self._target.forward([plan.window for plan in plans])
            except Exception as error:
                for plan in plans:
                    self._fail(plan.sequence, error)
                return
            for plan, rows in zip(plans, logits, strict=True):
                if plan.sequence.finished:  # dropped in the middle of this pass
                    continue
                try:
                    self._settle(plan, rows, began)
                except Exception as error:
                    self._fail(plan.sequence, error)

    def is_exact(self, num_tokens: int) -> bool:
        """Check on this device what the class promises, with a probe of `num_tokens` tokens.

        Serves the running requests until the cache has room for it.
        """
        while True:
            with self.lock:
                try:
                    table, _ = self._pool.open((), num_tokens)
                except OutOfBlocks:
                    self.step()
                    continue
                try:
                    return is_exact(self._target, table.blocks, num_tokens)
                finally:
                    self._pool.close(table)

    def _admit(self) -> None:
        while self._waiting:
            sequence = self._waiting[0]
            try:
                sequence.table, cached = self._pool.open(sequence.tokens, sequence.num_slots)
            except OutOfBlocks:
                return
            sequence.num_cached = sequence.num_taken_over = cached
            self._running.append(self._waiting.popleft())

    def _plan(self, sequence: Sequence) -> _Plan:
        tokens, blocks = sequence.tokens, sequence.table.blocks
        start = max(0, min(sequence.num_cached, len(tokens) - self._fewest_rows))
        if len(tokens) - start > PREFILL_ROWS:
            return _Plan(sequence, Draft(), Window(tokens[start : start + PREFILL_ROWS], start, blocks))
        draft = self._draft(sequence)
        fed = [*tokens[start:], *draft.tokens]
        if len(fed) < self._fewest_rows:  # a prompt of one token: nothing before it could be fed again
            return _Plan(sequence, draft, Window(fed * 2, start, blocks, num_rows=2))
        return _Plan(sequence, draft, Window(fed, start, blocks, num_rows=1 + len(draft.tokens)))

    def _draft(self, sequence: Sequence) -> Draft:
        """A drafter can only cost speed: one that fails is reported and left out for the rest of the answer."""
        drafter = self._drafters.get(sequence.config.mode)
        limit = min(sequence.config.num_assistant_tokens, sequence.max_new_tokens - sequence.num_new - 1)
        if drafter is None or limit < 1 or sequence.drafting_failed:
            return Draft()
        try:
            draft = drafter.propose(sequence, limit)
            impossible = [t for t in draft.tokens if not 0 <= t < self._target.vocabulary_size]
            if len(draft.tokens) > limit or len(draft.sources) != len(draft.tokens) or impossible:
                raise ValueError(f"{draft} is no draft of at most {limit} tokens of the target's vocabulary")
            return draft
        except Exception:
            log.warning("The drafter %s failed; this answer goes on without it.", drafter.name, exc_info=True)
            sequence.drafting_failed = True
            return Draft()

    def _settle(self, plan: _Plan, rows: NDArray[np.float32], began: float) -> None:
        sequence, draft, window = plan.sequence, plan.draft, plan.window
        window_end = window.start + len(window.tokens)
        num_before = sequence.num_new
        if window_end >= len(sequence.tokens):
            kept = verify(rows[: len(draft.tokens) + 1], draft.tokens, sequence.choose)
            foreseen = [token == proposed for token, proposed in zip(kept, draft.tokens, strict=False)]
            sequence.extend(kept, [*compress(draft.sources, foreseen), TARGET][: len(kept)])
        sources = tuple(sequence.sources[num_before:])
        sequence.num_cached = min(window_end, len(sequence.tokens) - 1)  # what was rejected is written over
        ended = time.perf_counter()
        sequence.trace.append(PassRecord(began, ended, len(window.tokens), len(draft.tokens), sources))
        self._pool.publish(sequence.table, sequence.tokens, sequence.num_cached)
        if sequence.finished:
            self._retire(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        sequence.error = error
        self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        self._pool.close(sequence.table)
        sequence.table = Table()
        for drafter in self._drafters.values():
            drafter.release(sequence)
