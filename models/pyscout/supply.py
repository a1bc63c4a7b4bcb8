"""Keeps training supplied with batches: made in place, or ahead of time by other processes where a GPU would wait."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from . import batches
from .batches import Batch
from .corpus import Function
from .tasks import TaskMaker


@dataclass(frozen=True, slots=True)
class Supply:
    """What pools are made of, by how many `workers`, and how many conversations each has.

    Without workers a pool is made when it is asked for. With workers, that many are made ahead; their place in the
    curriculum is then that of the moment when they were ordered, a little before they are used.
    """

    functions: Sequence[Function]
    maker: TaskMaker
    tokenizer: PreTrainedTokenizerFast
    batch_tokens: int
    workers: int
    pool_size: int

    def pools(self, first: int, seen: Callable[[], float]) -> Generator[list[Batch], None, None]:
        """Pools number `first`, `first` + 1 and so on without end; `seen()` is the share of the budget so far."""
        if self.workers == 0:
            for index in itertools.count(first):
                yield self.make(index, seen())
        context = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA
        with ProcessPoolExecutor(self.workers, context, initializer=_remember, initargs=(self,)) as executor:
            ahead: deque[Future[list[Batch]]] = deque()
            try:
                for index in itertools.count(first):
                    ahead.append(executor.submit(_make, index, seen()))
                    if len(ahead) > self.workers:
                        yield ahead.popleft().result()
            finally:
                executor.shutdown(wait=False, cancel_futures=True)

    def make(self, index: int, seen: float) -> list[Batch]:
        """One pool, in this process."""
        return list(
            batches.pool(self.functions, self.maker, self.tokenizer, index, seen, self.batch_tokens, self.pool_size)
        )


_supply: Supply  # in a worker process, which gets it once: the functions are too large to send with every pool


def _remember(supply: Supply) -> None:
    global _supply
    _supply = supply


def _make(index: int, seen: float) -> list[Batch]:
    return _supply.make(index, seen)
