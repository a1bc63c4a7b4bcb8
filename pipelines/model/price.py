"""Price: how much longer a pass of one token takes with other numbers of rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from .paged_model import PagedModel
from .paged_request import BLOCK_SIZE
from .target import ANY_ROWS, Rows, Window

FEWEST_TURNS, PRICED_S = 3, 1.0  # of passes of each kind, and seconds for all
IN_DOUBT = 8  # times PRICED_S at most, where it is in doubt whether the price is within a limit
TURN_S = 0.01  # of passes in a turn: the first few are slower, since kernels of another size have used the caches
MOST_PASSES = 100  # in a turn
CONTEXT = 64  # tokens behind which passes are timed


@dataclass(frozen=True, slots=True)
class Price:
    """How long a pass of one token takes with other numbers of rows than a plain pass has.

    plain_s: the time of a plain pass in seconds, a median.
    ratio: the time of the other pass over that of the plain one, as the median over pairs of neighbouring turns. The
        shortest time of each would compare the luckiest moments.
    error: the standard error of the ratio, estimated from the quartiles as for a normal distribution.
    """

    plain_s: float
    ratio: float
    error: float

    @classmethod
    def measured(cls, model: PagedModel, plain: Rows, other: Rows, limit: float = math.inf) -> Price:
        """Time passes of one token that keep to `plain` and to `other`, in turns, since the machine's speed changes.
        This takes PRICED_S seconds, and up to IN_DOUBT times as long until it is clear whether the ratio is within
        `limit`."""
        kept = model.rows
        turns: list[tuple[float, float]] = []
        began = time.perf_counter()
        while True:
            turns.append((_turn_s(model, plain), _turn_s(model, other)))
            took_s = time.perf_counter() - began
            if len(turns) < FEWEST_TURNS or took_s < PRICED_S:
                continue
            price = cls._of(turns)
            if took_s >= IN_DOUBT * PRICED_S or price._is_clear(limit):
                model.rows = kept
                return price

    @classmethod
    def _of(cls, turns: Sequence[tuple[float, float]]) -> Price:
        first, middle, third = quantiles([took / own for own, took in turns], n=4, method="inclusive")
        error = math.sqrt(math.pi / 2 / len(turns)) * (third - first) / 1.349
        return cls(median(own for own, _ in turns), middle, error)

    @property
    def least(self) -> float:
        """The lowest ratio that is plausible, given how the times scatter."""
        return self.ratio - 2 * self.error

    def _is_clear(self, limit: float) -> bool:
        """Whether the ratio is safely within the limit, or safely beyond it."""
        return self.ratio + self.error <= limit or limit < self.least


def _turn_s(model: PagedModel, rows: Rows) -> float:
    """The mean time of a pass of one token, in seconds."""
    model.rows = replace(rows, most=ANY_ROWS.most)  # which does not matter for one token
    first_s = pass_s(model, range(1), 1)
    number = max(1, math.ceil(TURN_S / max(first_s, TURN_S / MOST_PASSES)))
    return sum(pass_s(model, range(1), 1) for _ in range(number)) / number


def pass_s(model: PagedModel, blocks: Sequence[int], rows: int) -> float:
    """The time of a pass of `rows` rows in some blocks, in seconds."""
    context = min(CONTEXT, len(blocks) * BLOCK_SIZE - rows)
    began = time.perf_counter()
    model.forward([Window([0] * rows, context, blocks, num_rows=rows)])
    return time.perf_counter() - began
