"""CostModel: predicts the time of a pass on this machine, in milliseconds."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model.timing import Run
from .kalman_filter import KalmanFilter
from .measuring import TILE_ROWS, TOKEN_SHARE, UNTILED_ROWS, increasing, measured

FORMAT = 9
WIDE_TILE_ROWS = 64  # see `is_tiled`
TABLE_ROWS = 128  # numbers of rows whose costs are tabulated, since the planner needs many in every pass
DRAFT = 0.7  # standard deviation of the logarithm of the draft model's time over the measured one
DRAFT_FORGET = 0.0013  # share of what was learnt of it that is forgotten in each pass, or it is never asked again
DRAFT_DOUBT = 0.2  # see `KalmanFilter`
BUSY = 0.2  # the same of all passes together, as the machine may be busy
BASE, CONTEXT = (0.15, 0.07), (0.3, 0.1)  # the same of each number of rows, shared with those near to it, and alone
NEAR = 4.0  # doublings of the number of rows
AT_ONCE = 8  # passes
SAVE_AFTER = 64  # passes, and then after twice as many, and so on

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CostModel:
    """The time of a pass is a part for all its rows together and a part for each request's attention.

    rows: the numbers of rows with known costs, ascending; fewer than the first cost as much (see `PagedModel`).
    base_ms: for each of `rows`, the time of a pass over an empty context; ascending.
    context_ms: for each of `rows`, the time that a token of context adds for a window of so many rows; ascending.
    draft_ms: the draft model's time to generate a token.
    draft_row_ms: the draft model's time to read a token that it has to catch up with.
    draft_context_ms: what each token of context adds to that.
    is_tiled: whether passes of more than UNTILED_ROWS take as long as if they filled the last tile of TILE_ROWS, as
        with OpenVINO's matrix kernels for AVX-512; beyond 192 rows their tiles have WIDE_TILE_ROWS.
    base_doubt, context_doubt: for each of `rows`, additional standard deviations of the logarithms of costs that were
        guessed or measured badly; empty if none were.

    A `KalmanFilter` over all costs corrects the measurements with every pass: the machine may be busy now, it may have
    been busy while some costs were measured, and other programs slow down passes of few rows, which wait for memory,
    differently from passes of many, which compute. A second filter over one factor corrects the draft model's times; it
    returns to the measurements while that model is not asked.
    """

    rows: tuple[int, ...]
    base_ms: tuple[float, ...]
    context_ms: tuple[float, ...]
    draft_ms: float = 0.0
    draft_row_ms: float = 0.0
    draft_context_ms: float = 0.0
    is_tiled: bool = False
    base_doubt: tuple[float, ...] = ()
    context_doubt: tuple[float, ...] = ()
    least_row_ms: float = field(init=False, compare=False)  # what one more row costs where it costs least
    _filter: KalmanFilter = field(init=False, compare=False, repr=False)  # of all, base, a row beyond, context
    _seen: list[tuple[tuple[tuple[int, int], ...], float]] = field(init=False, compare=False, repr=False)  # of late
    _draft_filter: KalmanFilter = field(init=False, compare=False, repr=False)
    _base: list[float] = field(init=False, compare=False, repr=False)  # as believed now, and so
    _beyond: float = field(init=False, compare=False, repr=False)  # what each row beyond the last of `rows` adds
    _context: list[float] = field(init=False, compare=False, repr=False)
    _tabled: NDArray[np.int64] = field(init=False, compare=False, repr=False)
    _rows_table: list[float] = field(init=False, compare=False, repr=False)  # `_rows_ms` of up to TABLE_ROWS, and so
    _token_table: list[float] = field(init=False, compare=False, repr=False)
    _draft_slowness: float = field(init=False, compare=False, repr=False)  # times as long as was measured
    _path: Path | None = field(init=False, compare=False, repr=False)  # where what was learnt is kept
    _num_learnt: int = field(init=False, compare=False, repr=False)  # passes
    _save_at: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._tabled = np.array([self._whole(rows) for rows in range(TABLE_ROWS)])
        self._filter, self._seen = KalmanFilter(_prior(self.rows, self._doubt)), []
        self._path, self._num_learnt, self._save_at = None, 0, SAVE_AFTER
        self._draft_filter = KalmanFilter(np.array([[DRAFT**2]]), DRAFT_FORGET, DRAFT_DOUBT)
        self._draft_filter.update(np.ones(1), 0.0)  # what was measured is a time that was seen
        self._draft_slowness = 1.0
        self._believe()

    @property
    def is_guessed(self) -> bool:
        """Whether some costs were not measured well."""
        return any((*self.base_doubt, *self.context_doubt))

    def pass_ms(self, windows: Iterable[tuple[int, int]]) -> float:
        """The time of a pass over windows of (rows, context) each."""
        total_rows, attention_ms = 0, 0.0
        for rows, context in windows:
            total_rows += rows
            attention_ms += context * self._token_ms(rows)
        return self._rows_ms(total_rows) + attention_ms

    def row_ms(self, total_rows: int, rows: int, context: int) -> float:
        """What one more row costs in a pass of `total_rows`, in a window that has `rows` over `context` tokens."""
        attention_ms = context * (self._token_ms(rows + 1) - self._token_ms(rows))
        return self._rows_ms(total_rows + 1) - self._rows_ms(total_rows) + attention_ms

    def without_part_tile(self, rows: int) -> int:
        """The most rows, of so many, that waste no part of a tile: the others are cheaper in a pass of their own."""
        return rows - rows % WIDE_TILE_ROWS if self.is_tiled and rows > UNTILED_ROWS else rows

    def observe(self, windows: Iterable[tuple[int, int]], measured_ms: float) -> None:
        """Learn from a pass that took `measured_ms`. Several passes are learnt from at a time, unless costs were
        guessed: behind each of them nothing of this is in the processor's caches."""
        if measured_ms > 0:
            self._seen.append((tuple(windows), measured_ms))
        if len(self._seen) < (1 if self.is_guessed else AT_ONCE):
            return
        for seen, seen_ms in self._seen:
            expected_ms = self.pass_ms(seen)
            self._filter.update(self._shares(seen, expected_ms), math.log(seen_ms / expected_ms))
            self._believe()
        self._num_learnt += len(self._seen)
        self._seen.clear()
        if self._num_learnt >= self._save_at:
            self._save_again()

    def draft_pass_ms(self, num_requests: int) -> float:
        """The time of one pass of the draft model, a token for each of several requests."""
        return self._draft_slowness * (self.draft_ms + (num_requests - 1) * self.draft_row_ms)

    def feeding_ms(self, num_tokens: int) -> float:
        """The time in which the draft model is fed so many tokens. Where they are many, they are all that it knows."""
        return self._draft_slowness * num_tokens * (self.draft_row_ms + self.draft_context_ms * num_tokens / 2)

    def observe_draft(self, expected_ms: float, measured_ms: float) -> None:
        """Learn from a pass of the draft model."""
        if expected_ms > 0 and measured_ms > 0:
            self._draft_filter.update(np.ones(1), math.log(measured_ms / expected_ms))
            self._draft_slowness = math.exp(self._draft_filter.mean[0])

    def forget_draft(self) -> None:
        """Let go of a little of what was learnt of the draft model, in a pass in which it was not asked."""
        self._draft_filter.forget()
        self._draft_slowness = math.exp(self._draft_filter.mean[0])

    def _save_again(self) -> None:
        self._save_at *= 2
        if self._path is None or not self.is_guessed:
            return
        try:
            self.save(self._path)
        except OSError as error:
            log.warning("What was learnt of this machine cannot be kept: %s", error)
            self._path = None

    @property
    def _doubt(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of `base_ms` and of `context_ms`: float64 [rows]."""
        none = (0.0,) * len(self.rows)
        return np.array(self.base_doubt or none), np.array(self.context_doubt or none)

    def _rows_ms(self, rows: int) -> float:
        """The time of a pass of so many rows over an empty context."""
        if rows < TABLE_ROWS:
            return self._rows_table[rows]
        i, share = self._place(rows)
        if share > 1:
            return self._base[-1] + (share - 1) * (self.rows[-1] - self.rows[-2]) * self._beyond
        return (1 - share) * self._base[i] + share * self._base[i + 1]

    def _token_ms(self, rows: int) -> float:
        """What a token of context adds for a window of so many rows."""
        if rows < TABLE_ROWS:
            return self._token_table[rows]
        i, share = self._place(rows)
        return (1 - share) * self._context[i] + share * self._context[i + 1]

    def _place(self, rows: int) -> tuple[int, float]:
        """Between which two measured numbers of rows, and how far. Beyond the last, along the last stretch."""
        rows = self._whole(rows)
        if rows <= self.rows[0]:
            return 0, 0.0
        i = next((i for i in range(1, len(self.rows)) if rows <= self.rows[i]), len(self.rows) - 1)
        return i - 1, (rows - self.rows[i - 1]) / (self.rows[i] - self.rows[i - 1])

    def _whole(self, rows: int) -> int:
        """The number of rows that a pass of so many takes the time of."""
        return rows + -rows % TILE_ROWS if self.is_tiled and rows > UNTILED_ROWS else rows

    def _shares(self, windows: Sequence[tuple[int, int]], expected_ms: float) -> NDArray[np.float64]:
        """Of the time of a pass, in the order of `_filter`."""
        n = len(self.rows)
        shares = np.zeros(2 + 2 * n)
        i, share = self._place(sum(rows for rows, _ in windows))
        shares[1 + i] += (1 - min(share, 1)) * self._base[i]
        shares[2 + i] += min(share, 1) * self._base[i + 1]
        shares[1 + n] = max(share - 1, 0) * (self.rows[-1] - self.rows[-2]) * self._beyond
        for rows, context in windows:
            i, share = self._place(rows)
            shares[2 + n + i] += (1 - share) * context * self._context[i]
            shares[3 + n + i] += share * context * self._context[i + 1]
        shares /= expected_ms
        shares[0] = 1
        return shares

    def _believe(self) -> None:
        """Take the costs as they are thought to be by now."""
        n, factors, last = len(self.rows), np.exp(self._filter.mean[1:] + self._filter.mean[0]), self.rows[-1]
        base, context = increasing(factors[:n] * self.base_ms), increasing(factors[n + 1 :] * self.context_ms)
        self._base, self._context = base.tolist(), context.tolist()
        self._beyond = float(factors[n]) * (self.base_ms[-1] - self.base_ms[-2]) / (last - self.rows[-2])
        beyond, widening = np.maximum(self._tabled - last, 0), (context[-1] - context[-2]) / (last - self.rows[-2])
        self._rows_table = (np.interp(self._tabled, self.rows, base) + self._beyond * beyond).tolist()
        self._token_table = (np.interp(self._tabled, self.rows, context) + widening * beyond).tolist()
        grows = zip(pairwise(self.rows), pairwise(self._base), strict=True)
        self.least_row_ms = min(self._beyond, *((after - before) / (b - a) for (a, b), (before, after) in grows))

    @classmethod
    def measure(
        cls,
        target: Run,
        draft: Run | None,
        max_context: int,
        least_rows: int = 2,
        most_rows: int | None = None,
        token_share: float = TOKEN_SHARE,
        budget_s: float = math.inf,
    ) -> CostModel:
        """Time passes of both models, of the target's those of `least_rows` to `most_rows`. Raises NoMeasurement.

        budget_s: after so many seconds no pass begins but those few without which nothing can be said. What was not
            tried is guessed, and doubted until passes show it.
        token_share: bytes of a token's keys and values, for each of the target's weights.
        """
        made = measured(target, draft, max_context, least_rows, most_rows, token_share, budget_s)
        return cls(**{each.name: getattr(made, each.name) for each in fields(made)})

    def refined(self) -> CostModel:
        """What is known by now: what was guessed, as passes have shown it, and what was measured, as it was, since the
        machine may have been busy of late. For the same reason, the draft model's costs are taken as they seem to be
        only where that is less: one that seems dear is not asked, so nobody would find out that it is not."""
        n, factors, deviation = len(self.rows), np.exp(self._filter.mean[1:]), self._filter.deviation[1:]
        base_doubt, context_doubt = self._doubt
        base = np.where(base_doubt > 0, factors[:n], 1.0) * self.base_ms
        context = np.where(context_doubt > 0, factors[n + 1 :], 1.0) * self.context_ms
        quick = min(1.0, self._draft_slowness)
        return replace(
            self,
            base_ms=tuple(increasing(base).tolist()),
            context_ms=tuple(increasing(context).tolist()),
            draft_ms=quick * self.draft_ms,
            draft_row_ms=quick * self.draft_row_ms,
            draft_context_ms=quick * self.draft_context_ms,
            base_doubt=_left(self.base_doubt, deviation[:n], BASE),
            context_doubt=_left(self.context_doubt, deviation[n + 1 :], CONTEXT),
        )

    def keep_on(self, path: Path) -> None:
        """Save what is learnt of guessed costs to `path`, from time to time, until that fails."""
        self._path = path

    def save(self, path: Path) -> None:
        """Write what is known by now to `path`, whole or not at all. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        known = self.refined()
        stored = {each.name: getattr(known, each.name) for each in fields(self) if each.init}
        try:
            partial.write_text(json.dumps({"format": FORMAT, **stored}), encoding="utf-8")
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: Path) -> CostModel | None:
        """The model in `path`; None where there is none, or a damaged one, or one of another format."""
        try:
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if stored.pop("format") != FORMAT:
                return None
            rows, base_ms, context_ms = (tuple(stored.pop(name)) for name in ("rows", "base_ms", "context_ms"))
            draft = {name: stored.pop(name) for name in ("draft_ms", "draft_row_ms", "draft_context_ms")}
            is_tiled = stored.pop("is_tiled")
            base_doubt, context_doubt = (tuple(stored.pop(name)) for name in ("base_doubt", "context_doubt"))
            sound = (
                len(rows) == len(base_ms) == len(context_ms) >= 2
                and all(isinstance(each, int) for each in rows)
                and all(0 < a < b for a, b in pairwise(rows))
                and all(a <= b for costs in (base_ms, context_ms) for a, b in pairwise(costs))
                and all(0 <= cost < float("inf") for cost in (*base_ms, *context_ms, *draft.values()))
                and min(base_ms) > 0
                and isinstance(is_tiled, bool)
                and all(len(doubt) in (0, len(rows)) for doubt in (base_doubt, context_doubt))
                and all(0 <= each < float("inf") for each in (*base_doubt, *context_doubt))
                and not stored
            )
            made = cls(rows, base_ms, context_ms, **draft, is_tiled=is_tiled) if sound else None
            return made and replace(made, base_doubt=base_doubt, context_doubt=context_doubt)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def _prior(rows: Sequence[int], doubts: tuple[NDArray[np.float64], NDArray[np.float64]]) -> NDArray[np.float64]:
    """How far costs may be from what was measured, in the order of `CostModel._filter`: float64 [costs, costs]."""
    places = np.log2([*rows, 2 * rows[-1]])
    near = np.exp(-abs(places[:, None] - places) / NEAR)
    n, (base, context) = len(rows), doubts
    prior = np.zeros((2 + 2 * n, 2 + 2 * n))
    prior[0, 0] = BUSY**2
    for first, doubt, (together, alone) in ((1, np.append(base, base[-1]), BASE), (2 + n, context, CONTEXT)):
        size = len(doubt)
        shared = together**2 + np.outer(doubt, doubt)
        prior[first : first + size, first : first + size] = shared * near[:size, :size] + alone**2 * np.eye(size)
    return prior


def _left(doubt: tuple[float, ...], deviation: NDArray[np.float64], usual: tuple[float, float]) -> tuple[float, ...]:
    """What is left of `doubt` now that costs are believed to within `deviation`, to three places: then it is over."""
    variance = (deviation**2 - usual[0] ** 2 - usual[1] ** 2).clip(0.0)
    return tuple(np.minimum(doubt, np.sqrt(variance)).round(3).tolist()) if any(doubt) else doubt
