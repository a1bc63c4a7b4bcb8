"""CostModel: predicts the time of a pass on this machine, in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .draft_cost import DraftCost
from .kalman_filter import KalmanFilter

UNTILED_ROWS, TILE_ROWS, WIDE_TILE_ROWS = 64, 32, 64  # see `CostModel.is_tiled`
TABLE_ROWS = 128  # costs of up to this many rows are tabulated, since the planner needs many in every pass

# Standard deviations of the logarithms of actual over measured times: of all passes together, as the machine may be
# busy; of each number of rows and of context, correlated with similar numbers and independently.
BUSY = 0.2
BASE, CONTEXT = (0.15, 0.07), (0.3, 0.1)
CHANGE = 0.5  # the same for changes of size
NEAR = 4.0  # correlation length, in doublings of the number of rows
AT_ONCE = 8  # passes to learn from at a time
# After so many passes `when_refined` is called, then after twice as many, and so on. Up to the first time each pass is
# learnt from at once if costs were estimated.
REFINED_AFTER = 64


class _Seen(NamedTuple):
    """A pass over windows of (rows, context) each."""

    windows: tuple[tuple[int, int], ...]
    has_changed: bool  # its size
    ms: float


@dataclass(slots=True)
class CostModel:
    """The time of a pass has a part for all its rows together, a part for each request's attention, and a further one
    if its number of rows differs from that of the last pass: OpenVINO prepares every operation anew when a shape
    changes.

    rows: the numbers of rows with known costs, ascending; fewer rows than the first cost as much (see `PagedModel`).
    base_ms: for each of `rows`, the time of a pass over an empty context; ascending.
    context_ms: for each of `rows`, the time that a token of context adds for a window of that many rows; ascending.
    drafts: what the models that draft take, by the drafter's name.
    is_tiled: whether passes of more than UNTILED_ROWS take as long as if they filled the last tile of TILE_ROWS, as
        with OpenVINO's matrix kernels for AVX-512; beyond 192 rows their tiles have WIDE_TILE_ROWS.
    base_doubt, context_doubt: for each of `rows`, additional standard deviations of the logarithms of costs that were
        estimated or measured badly; empty if none were.
    change_ms: how much longer a pass takes if the one before it had another number of rows. Methods with an argument
        `last`, the rows of the last pass, give the time of a pass that follows it and is padded to its size where that
        is cheaper; with 0, the time of a pass that follows one of its own size.
    changing_ms: the current estimate of the same.
    when_refined: called with the `refined` model from time to time, as long as some costs are guessed.

    A `KalmanFilter` over all costs corrects the measurements with every pass: the machine may be busy now, it may have
    been busy while some costs were measured, and other programs slow down passes of few rows, which are bound by
    memory, differently from passes of many rows, which are bound by arithmetic.
    """

    rows: tuple[int, ...]
    base_ms: tuple[float, ...]
    context_ms: tuple[float, ...]
    drafts: Mapping[str, DraftCost] = field(default_factory=dict)
    is_tiled: bool = False
    base_doubt: tuple[float, ...] = ()
    context_doubt: tuple[float, ...] = ()
    change_ms: float = 0.0
    changing_ms: float = field(init=False, compare=False, repr=False)
    when_refined: Callable[[CostModel], None] | None = field(init=False, compare=False, repr=False)
    _filter: KalmanFilter = field(init=False, compare=False, repr=False)  # all, base, beyond, context, change
    _seen: list[_Seen] = field(init=False, compare=False, repr=False)  # passes that were not learnt from yet
    _base: list[float] = field(init=False, compare=False, repr=False)  # current estimates, like those that follow
    _beyond: float = field(init=False, compare=False, repr=False)  # cost of each row beyond the last of `rows`
    _context: list[float] = field(init=False, compare=False, repr=False)
    _tabled: NDArray[np.int64] = field(init=False, compare=False, repr=False)
    _rows_tables: dict[int, list[float]] = field(init=False, compare=False, repr=False)  # see `_rows_table`
    _token_table: list[float] = field(init=False, compare=False, repr=False)
    _least_table: dict[tuple[int, int], float] = field(init=False, compare=False, repr=False)  # of `least_row_ms`
    _num_learnt: int = field(init=False, compare=False, repr=False)  # passes
    _refined_at: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._tabled = np.array([self._whole(rows) for rows in range(TABLE_ROWS)])
        self._filter, self._seen = KalmanFilter(_prior(self.rows, self._doubt)), []
        self.when_refined, self._num_learnt, self._refined_at = None, 0, REFINED_AFTER
        self.drafts = {name: replace(draft) for name, draft in self.drafts.items()}  # which have learnt nothing
        self._believe()

    @property
    def is_guessed(self) -> bool:
        """Whether some costs were estimated or measured badly."""
        return any((*self.base_doubt, *self.context_doubt))

    def pass_ms(self, windows: Iterable[tuple[int, int]]) -> float:
        """The time of a pass over windows of (rows, context) each."""
        total_rows, attention_ms = 0, 0.0
        for rows, context in windows:
            total_rows += rows
            attention_ms += context * self._token_ms(rows)
        return self._rows_ms(total_rows) + attention_ms

    def size_ms(self, rows: int, last: int = 0) -> float:
        """The time of a pass of `rows` rows over an empty context."""
        if rows < TABLE_ROWS:
            return self._rows_table(last)[rows]
        same_ms = self._rows_ms(rows)
        if last in (0, rows):
            return same_ms
        return min(same_ms + self.changing_ms, self._rows_ms(last)) if rows < last else same_ms + self.changing_ms

    def row_ms(self, total_rows: int, rows: int, context: int, last: int = 0) -> float:
        """The cost of one more row in a pass of `total_rows`, for a window of `rows` rows after `context` tokens."""
        return self.rows_ms(total_rows, rows, context, 1, last)[0]

    def rows_ms(self, total_rows: int, rows: int, context: int, number: int, last: int = 0) -> list[float]:
        """The cost of each of the next `number` rows, as by `row_ms`."""
        if max(total_rows, rows) + number < TABLE_ROWS:  # as nearly always, and many are needed in every pass
            totals = self._rows_table(last)[total_rows : total_rows + number + 1]
            tokens = self._token_table[rows : rows + number + 1]
        else:
            totals = [self.size_ms(total_rows + i, last) for i in range(number + 1)]
            tokens = [self._token_ms(rows + i) for i in range(number + 1)]
        return [totals[i + 1] - totals[i] + context * (tokens[i + 1] - tokens[i]) for i in range(number)]

    def least_row_ms(self, total_rows: int, last: int = 0) -> float:
        """The lowest average cost of the next rows of a pass of `total_rows`, over any number of them: an expensive row
        may be followed by cheap ones."""
        least = self._least_table.get((total_rows, last))
        if least is None:
            here, end = self.size_ms(total_rows, last), self.rows[-1]
            means = [(ms - here) / more for more, ms in enumerate(self._rows_table(last)[total_rows + 1 :], 1)]
            if total_rows < end:
                means.append((self.size_ms(end, last) - here) / (end - total_rows))
            least = self._least_table[total_rows, last] = min((self._beyond, *means))
        return least

    def without_part_tile(self, rows: int) -> int:
        """The largest number of rows up to `rows` that fills whole tiles; the rest is cheaper in a pass of its own."""
        return rows - rows % WIDE_TILE_ROWS if self.is_tiled and rows > UNTILED_ROWS else rows

    def observe(self, windows: Iterable[tuple[int, int]], measured_ms: float, has_changed: bool = False) -> None:
        """Learn from a pass over windows of (rows, context) each that took `measured_ms`, padding included.

        has_changed: whether the pass before had another number of rows.

        Passes are collected and learnt from several at a time, because after each pass the processor's caches are cold
        and Python is slow; only the first ones are learnt from at once if costs were estimated.
        """
        if measured_ms > 0:
            self._seen.append(_Seen(tuple(windows), has_changed, measured_ms))
        is_new = self.is_guessed and self._num_learnt < REFINED_AFTER
        if len(self._seen) < (1 if is_new else AT_ONCE):
            return
        for seen in self._seen:
            expected_ms = self.pass_ms(seen.windows) + seen.has_changed * self.changing_ms
            self._filter.update(self._shares(seen, expected_ms), math.log(seen.ms / expected_ms))
            self._believe()
        self._num_learnt += len(self._seen)
        self._seen.clear()
        if self._num_learnt >= self._refined_at:
            self._refined_at *= 2
            if self.when_refined is not None and self.is_guessed:
                self.when_refined(self.refined())

    def of_draft(self, name: str) -> DraftCost:
        """The costs of a drafter's model; zero if they were not measured."""
        found = self.drafts.get(name)
        return DraftCost(0.0) if found is None else found

    @property
    def _doubt(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The doubts of `base_ms` and of `context_ms`, float64 [rows] each."""
        none = (0.0,) * len(self.rows)
        return np.array(self.base_doubt or none), np.array(self.context_doubt or none)

    def _rows_ms(self, rows: int) -> float:
        """The time of a pass of `rows` rows over an empty context."""
        if rows < TABLE_ROWS:
            return self._rows_table(0)[rows]
        i, share = self._place(rows)
        if share > 1:
            return self._base[-1] + (share - 1) * (self.rows[-1] - self.rows[-2]) * self._beyond
        return (1 - share) * self._base[i] + share * self._base[i + 1]

    def _rows_table(self, last: int) -> list[float]:
        """`size_ms` of up to TABLE_ROWS rows."""
        table = self._rows_tables.get(last)
        if table is None:
            same, filled = self._rows_tables[0], self._rows_ms(last)
            table = [min(ms + self.changing_ms, filled) for ms in same[: last + 1]]
            table += [ms + self.changing_ms for ms in same[last + 1 :]]
            self._rows_tables[last] = table
        return table

    def _token_ms(self, rows: int) -> float:
        """The time that a token of context adds for a window of `rows` rows."""
        if rows < TABLE_ROWS:
            return self._token_table[rows]
        i, share = self._place(rows)
        return (1 - share) * self._context[i] + share * self._context[i + 1]

    def _place(self, rows: int) -> tuple[int, float]:
        """The index of the interval of `self.rows` that contains `rows`, and the position in it from 0 to 1; above 1
        beyond the last."""
        rows = self._whole(rows)
        if rows <= self.rows[0]:
            return 0, 0.0
        i = next((i for i in range(1, len(self.rows)) if rows <= self.rows[i]), len(self.rows) - 1)
        return i - 1, (rows - self.rows[i - 1]) / (self.rows[i] - self.rows[i - 1])

    def _whole(self, rows: int) -> int:
        """The number of rows whose time a pass of `rows` takes: with tiles, the next whole tile."""
        return rows + -rows % TILE_ROWS if self.is_tiled and rows > UNTILED_ROWS else rows

    def _shares(self, seen: _Seen, expected_ms: float) -> NDArray[np.float64]:
        """The shares of a pass's time that scale with each factor of `_filter`, in its order."""
        n = len(self.rows)
        shares = np.zeros(3 + 2 * n)
        i, share = self._place(sum(rows for rows, _ in seen.windows))
        shares[1 + i] += (1 - min(share, 1)) * self._base[i]
        shares[2 + i] += min(share, 1) * self._base[i + 1]
        shares[1 + n] = max(share - 1, 0) * (self.rows[-1] - self.rows[-2]) * self._beyond
        for rows, context in seen.windows:
            i, share = self._place(rows)
            shares[2 + n + i] += (1 - share) * context * self._context[i]
            shares[3 + n + i] += share * context * self._context[i + 1]
        shares[-1] = seen.has_changed * self.changing_ms
        shares /= expected_ms
        shares[0] = 1
        return shares

    def _believe(self) -> None:
        """Update the current estimates from the filter."""
        n, factors, last = len(self.rows), np.exp(self._filter.mean[1:] + self._filter.mean[0]), self.rows[-1]
        base, context = increasing(factors[:n] * self.base_ms), increasing(factors[n + 1 : -1] * self.context_ms)
        self._base, self._context = base.tolist(), context.tolist()
        self.changing_ms = float(factors[-1]) * self.change_ms
        self._beyond = float(factors[n]) * (self.base_ms[-1] - self.base_ms[-2]) / (last - self.rows[-2])
        beyond, widening = np.maximum(self._tabled - last, 0), (context[-1] - context[-2]) / (last - self.rows[-2])
        self._rows_tables = {0: (np.interp(self._tabled, self.rows, base) + self._beyond * beyond).tolist()}
        self._token_table = (np.interp(self._tabled, self.rows, context) + widening * beyond).tolist()
        self._least_table = {}

    def refined(self) -> CostModel:
        """A model with estimated costs corrected by passes, and measured ones unchanged, as the machine may have been
        busy lately."""
        n, factors, deviation = len(self.rows), np.exp(self._filter.mean[1:]), self._filter.deviation[1:]
        base_doubt, context_doubt = self._doubt
        base = np.where(base_doubt > 0, factors[:n], 1.0) * self.base_ms
        context = np.where(context_doubt > 0, factors[n + 1 : -1], 1.0) * self.context_ms
        return replace(
            self,
            base_ms=tuple(increasing(base).tolist()),
            context_ms=tuple(increasing(context).tolist()),
            drafts={name: draft.refined() for name, draft in self.drafts.items()},
            base_doubt=_left(self.base_doubt, deviation[:n], BASE),
            context_doubt=_left(self.context_doubt, deviation[n + 1 : -1], CONTEXT),
        )


def increasing(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest non-decreasing sequence below `values`: more rows never cost less, so anything else is noise."""
    return np.minimum.accumulate(np.asarray(values)[::-1])[::-1]


def _prior(rows: Sequence[int], doubts: tuple[NDArray[np.float64], NDArray[np.float64]]) -> NDArray[np.float64]:
    """Prior covariance of the logarithms of actual over measured costs, in the order of `CostModel._filter`, float64
    [costs, costs]."""
    places = np.log2([*rows, 2 * rows[-1]])
    near = np.exp(-abs(places[:, None] - places) / NEAR)
    n, (base, context) = len(rows), doubts
    prior = np.zeros((3 + 2 * n, 3 + 2 * n))
    prior[0, 0], prior[-1, -1] = BUSY**2, CHANGE**2
    for first, doubt, (together, alone) in ((1, np.append(base, base[-1]), BASE), (2 + n, context, CONTEXT)):
        size = len(doubt)
        shared = together**2 + np.outer(doubt, doubt)
        prior[first : first + size, first : first + size] = shared * near[:size, :size] + alone**2 * np.eye(size)
    return prior


def _left(doubt: tuple[float, ...], deviation: NDArray[np.float64], usual: tuple[float, float]) -> tuple[float, ...]:
    """What remains of `doubt` given the posterior `deviation`, rounded to three places so that it ends at 0."""
    variance = (deviation**2 - usual[0] ** 2 - usual[1] ** 2).clip(0.0)
    return tuple(np.minimum(doubt, np.sqrt(variance)).round(3).tolist()) if any(doubt) else doubt
