"""Contest: which way to compile and run a model, its form, is fastest on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Generic, TypeVar

from .paged_model import PagedModel
from .paged_request import BLOCK_SIZE
from .price import pass_s

ROWS = (1, 2, 4, 8, 16)  # of the passes that are timed
NUM_BLOCKS = 128 // BLOCK_SIZE  # of the cache of a model that is timed
# Passes of one size in a turn; one if time is up. The first are slower, since another model has used the processor's
# caches.
TURN = 3
FEWEST_TURNS, MOST_TURNS, TURNS_S = 2, 13, 0.5  # of each size, and seconds for all
BESIDE_BYTES = 1 << 30  # weights of a model that may be in memory twice

Form = TypeVar("Form")


class Contest(Generic[Form]):
    """A form of a model that others challenge. Where the model is light enough to be in memory twice, both are timed in
    turns; otherwise a machine that is busy for a few seconds would decide between them.

    form: the fastest one so far.
    longest_inner, num_threads: of the model of the first form.
    """

    def __init__(self, load: Callable[[Form, int], PagedModel], form: Form, model: PagedModel | None = None) -> None:
        """Begin with a form.

        load: loads a form with a cache of so many blocks.
        model: that of `form`, if it is loaded.

        Raises what `load` raises.
        """
        self.form = form
        self._load = load
        if model is None:
            model = load(form, NUM_BLOCKS)
        else:
            model.resize(NUM_BLOCKS)
        self._model: PagedModel | None = model
        self._own_s: Sequence[float] = ()  # times of the fastest form, if its model was unloaded to make room
        self.longest_inner = model.longest_inner
        self.num_threads = model.num_threads
        self._is_light = model.weight_bytes <= BESIDE_BYTES

    def challenge(
        self,
        form: Form,
        is_faster: Callable[[Sequence[float]], bool],
        accepted: Callable[[Form, PagedModel], Form | None] = lambda form, model: form,
    ) -> bool:
        """Whether another form takes the place of this one.

        is_faster: decides by the ratios of the other's times to this one's, one for each of ROWS.
        accepted: returns a faster form with what was found out about it, or None to refuse it.
        """
        if self._is_light and self._model is not None:
            model = self._load(form, NUM_BLOCKS)
            relative = [median(other / own for own, other in turns) for turns in _turns(self._model, model)]
        else:
            if self._model is not None:
                self._own_s = shortest_s(self._model)
            self._model = None  # else two are in memory
            model = self._load(form, NUM_BLOCKS)
            relative = [took / own for took, own in zip(shortest_s(model), self._own_s, strict=True)]
        taken = accepted(form, model) if is_faster(relative) else None
        if taken is not None:
            self.form, self._model = taken, model
        return taken is not None

    def winner(self) -> tuple[PagedModel, Form]:
        """The fastest form, loaded."""
        if self._model is None:
            self._model = self._load(self.form, NUM_BLOCKS)
        return self._model, self.form


def shortest_s(model: PagedModel) -> list[float]:
    """For each of ROWS the shortest time of a pass, in seconds."""
    return [min(turn[0] for turn in turns) for turns in _turns(model)]


def _turns(*models: PagedModel) -> Iterator[list[list[float]]]:
    """For each of ROWS, the shortest time of a pass of each model in each turn, in seconds. The first passes, which
    pack weights and compile kernels, do not count."""
    for rows in ROWS:
        for model in models:
            _turn_s(model, rows, until=0.0)
        until = time.perf_counter() + TURNS_S * len(models)
        turns: list[list[float]] = []
        while len(turns) < FEWEST_TURNS or (len(turns) < MOST_TURNS and time.perf_counter() < until):
            turns.append([_turn_s(model, rows, until) for model in models])
        yield turns


def _turn_s(model: PagedModel, rows: int, until: float) -> float:
    """The shortest time of a pass in a turn, in seconds. Of a slow model one pass is enough, since it takes so long
    that the processor's caches do not matter."""
    blocks = range(min(model.num_blocks, NUM_BLOCKS))
    times = [pass_s(model, blocks, rows)]
    while len(times) < TURN and time.perf_counter() < until:
        times.append(pass_s(model, blocks, rows))
    return min(times)
