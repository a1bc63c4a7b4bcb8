"""CostModel: what a pass over n rows costs on this machine, in milliseconds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .belief import Belief

FORMAT = 8
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 25, 32, 33, 64)  # kernels take them by fours
CONTEXTS = (64, 1984)  # tokens in the cache already: the short and the long end that are measured
CATCH_UP_ROWS = 64
UNTILED_ROWS, TILE_ROWS, WIDE_TILE_ROWS = 64, 32, 64  # see `is_tiled`
TABLE_ROWS = 128  # up to which prices are kept ready, since the planner asks for many of them in every pass
FEWEST_REPEATS, MOST_REPEATS, MOST_IF_WILD = 2, 12, 48
CONFIRMED, WILD = 1.2, 3.0  # how many times the fastest the second may take, to be believed or to be of use
DRAFT = 0.7  # how far the draft model's time may be from what was measured: a standard deviation, of the logarithm
DRAFT_FORGET = 0.0015  # share of what was learnt of it that each pass lets go of, else it is never asked again
DRAFT_DOUBT = 0.2  # see `Belief`
BUSY = 0.2  # how far all passes together may be from what was measured: a standard deviation, of the logarithm
BASE, CONTEXT = (0.15, 0.07), (0.3, 0.1)  # and each number of rows, together with those near to it, and alone
NEAR = 4.0  # doublings of the number of rows
AT_ONCE = 8  # passes


class NoMeasurement(Exception):
    """The clock gave times that cannot be: zero, negative, or wildly scattered."""


class Run(Protocol):
    """Runs a pass of one window of `rows` rows over `context` cached tokens, whatever they are."""

    def __call__(self, rows: int, context: int) -> object: ...


@dataclass(slots=True)
class CostModel:
    """Predicts the time of a pass: a part for all its rows together, and a part for each sequence's attention.

    rows: the numbers of rows that were measured, ascending. Fewer than the first cost as much, see `PagedModel`.
    base_ms: for each of `rows`, the time of a pass of so many rows over an empty context; ascending, and so are
    context_ms: for each of `rows`, what a token of context adds for a window of so many rows.
    draft_ms, draft_row_ms: the draft model's time for a token, and for a token that it has to catch up with;
        draft_context_ms: what each token of context adds to the latter.
    is_tiled: passes of more than UNTILED_ROWS cost as much as if their rows filled the last tile of TILE_ROWS. So it is
        with OpenVINO's matrix kernels on a processor with AVX-512; beyond 192 rows their tiles are WIDE_TILE_ROWS.

    Each pass corrects what was measured once, by a `Belief` over all of these costs: the machine may be busy now, and
    all passes slower; it may have been busy while some of them were measured; and a pass of few rows waits for memory
    where one of many computes, so what else runs can be in the way of either. Another belief, over one factor, corrects
    the draft model's times. It drifts back to what was measured while that model is not asked.
    """

    rows: tuple[int, ...]
    base_ms: tuple[float, ...]
    context_ms: tuple[float, ...]
    draft_ms: float = 0.0
    draft_row_ms: float = 0.0
    draft_context_ms: float = 0.0
    is_tiled: bool = False
    least_row_ms: float = field(init=False, compare=False)  # what one more row costs where it costs least
    _belief: Belief = field(init=False, compare=False, repr=False)  # in the order: all, base, a row beyond, context
    _seen: list[tuple[tuple[tuple[int, int], ...], float]] = field(init=False, compare=False, repr=False)  # of late
    _draft_belief: Belief = field(init=False, compare=False, repr=False)
    _base: list[float] = field(init=False, compare=False, repr=False)  # as believed now, and so
    _beyond: float = field(init=False, compare=False, repr=False)  # what each row beyond the last of `rows` adds
    _context: list[float] = field(init=False, compare=False, repr=False)
    _tabled: NDArray[np.int64] = field(init=False, compare=False, repr=False)
    _rows_table: list[float] = field(init=False, compare=False, repr=False)  # `_rows_ms` of up to TABLE_ROWS, and so
    _token_table: list[float] = field(init=False, compare=False, repr=False)
    _draft_slowness: float = field(init=False, compare=False, repr=False)  # times as long as was measured

    def __post_init__(self) -> None:
        self._tabled = np.array([self._whole(rows) for rows in range(TABLE_ROWS)])
        self._belief, self._seen = Belief(_prior(self.rows)), []
        self._draft_belief = Belief(np.array([[DRAFT**2]]), DRAFT_FORGET, DRAFT_DOUBT)
        self._draft_belief.learn(np.ones(1), 0.0)  # what was measured is a time that was seen
        self._draft_slowness = 1.0
        self._believe()

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
        """Learn from a pass that took `measured_ms`. Several passes are learnt from at a time: behind each of them
        nothing of this is in the processor's caches."""
        if measured_ms > 0:
            self._seen.append((tuple(windows), measured_ms))
        if len(self._seen) < AT_ONCE:
            return
        for seen, seen_ms in self._seen:
            expected_ms = self.pass_ms(seen)
            self._belief.learn(self._shares(seen, expected_ms), math.log(seen_ms / expected_ms))
            self._believe()
        self._seen.clear()

    def draft_pass_ms(self, num_sequences: int) -> float:
        """The time of one pass of the draft model, a token for each of several sequences."""
        return self._draft_slowness * (self.draft_ms + (num_sequences - 1) * self.draft_row_ms)

    def feeding_ms(self, num_tokens: int) -> float:
        """The time in which the draft model is fed so many tokens. Where they are many, they are all that it knows."""
        return self._draft_slowness * num_tokens * (self.draft_row_ms + self.draft_context_ms * num_tokens / 2)

    def observe_draft(self, expected_ms: float, measured_ms: float) -> None:
        """Learn from a pass of the draft model."""
        if expected_ms > 0 and measured_ms > 0:
            self._draft_belief.learn(np.ones(1), math.log(measured_ms / expected_ms))
            self._draft_slowness = math.exp(self._draft_belief.mean[0])

    def forget_draft(self) -> None:
        """Let go of a little of what was learnt of the draft model, in a pass in which it was not asked."""
        self._draft_belief.forget()
        self._draft_slowness = math.exp(self._draft_belief.mean[0])

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

    def _shares(self, windows: SequenceOf[tuple[int, int]], expected_ms: float) -> NDArray[np.float64]:
        """Of the time of a pass, in the order of `_belief`."""
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
        n, factors, last = len(self.rows), np.exp(self._belief.mean[1:] + self._belief.mean[0]), self.rows[-1]
        base, context = _increasing(factors[:n] * self.base_ms), _increasing(factors[n + 1 :] * self.context_ms)
        self._base, self._context = base.tolist(), context.tolist()
        self._beyond = float(factors[n]) * (self.base_ms[-1] - self.base_ms[-2]) / (last - self.rows[-2])
        beyond, widening = np.maximum(self._tabled - last, 0), (context[-1] - context[-2]) / (last - self.rows[-2])
        self._rows_table = (np.interp(self._tabled, self.rows, base) + self._beyond * beyond).tolist()
        self._token_table = (np.interp(self._tabled, self.rows, context) + widening * beyond).tolist()
        grows = zip(pairwise(self.rows), pairwise(self._base), strict=True)
        self.least_row_ms = min(self._beyond, *((after - before) / (b - a) for (a, b), (before, after) in grows))

    @classmethod
    def measure(cls, target: Run, draft: Run | None, max_context: int, least_rows: int = 2) -> CostModel:
        """Time passes of both models. Raises NoMeasurement."""
        rows = tuple(n for n in ROWS if least_rows <= n < max_context)
        short, long = (max(0, min(context, max_context - rows[-1])) for context in CONTEXTS)
        few = sorted({*rows[:2], rows[len(rows) // 2], rows[-1]})  # a single row takes another attention kernel
        tiles = [(UNTILED_ROWS + more, short) for more in (0, 1) if max_context > UNTILED_ROWS + short]
        shapes = [*((n, short) for n in rows), *((n, long) for n in few), *tiles]
        times = _fastest_ms(target, shapes)
        at_short = _increasing([times[n, short] for n in rows])
        at_long = np.interp(rows, few, _increasing([times[n, long] for n in few]))
        slope = _increasing((at_long - at_short).clip(0.0) / max(long - short, 1))
        base = _increasing(at_short - slope * short)
        if base.min() <= 0:
            raise NoMeasurement(f"A pass over an empty context would take {base.min():.3g} ms.")
        if base[-1] <= base[0]:  # whatever is drafted would seem free
            raise NoMeasurement(f"A pass of {rows[-1]} rows would take no longer than one of {rows[0]}.")
        filled_ms, begun_ms = (times[tile] for tile in tiles) if tiles else (0.0, 0.0)
        is_tiled = begun_ms - filled_ms > TILE_ROWS / 2 * (filled_ms / UNTILED_ROWS)
        made = cls(rows, tuple(base.tolist()), tuple(slope.tolist()), is_tiled=is_tiled)
        if draft is not None:

            def first() -> object:  # as in use: the target's weights have driven the draft model's out of the caches
                return target(rows[0], short)

            more = min(CATCH_UP_ROWS, max_context - short - 1)
            far = max(short, min(long, max_context - more - 1))
            one, near, distant = (1, short), (1 + more, short), (1 + more, far)
            times = _fastest_ms(draft, [one, near, distant], first)
            made.draft_ms, near_ms, far_ms = times[one], times[near], times[distant]
            made.draft_context_ms = max(0.0, (far_ms - near_ms) / max(far - short, 1) / (1 + more))
            made.draft_row_ms = max(0.0, (near_ms - made.draft_ms) / max(more, 1) - made.draft_context_ms * short)
        return made

    def save(self, path: Path) -> None:
        """Write what was measured to `path`, whole or not at all. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        measured = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        partial.write_text(json.dumps({"format": FORMAT, **measured}), encoding="utf-8")
        partial.replace(path)

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
            sound = (
                len(rows) == len(base_ms) == len(context_ms) >= 2
                and all(isinstance(each, int) for each in rows)
                and all(0 < a < b for a, b in pairwise(rows))
                and all(a <= b for costs in (base_ms, context_ms) for a, b in pairwise(costs))
                and all(0 <= cost < float("inf") for cost in (*base_ms, *context_ms, *draft.values()))
                and min(base_ms) > 0
                and isinstance(is_tiled, bool)
                and not stored
            )
            return cls(rows, base_ms, context_ms, **draft, is_tiled=is_tiled) if sound else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def _fastest_ms(
    run: Run, shapes: SequenceOf[tuple[int, int]], first: Callable[[], object] = lambda: None
) -> dict[tuple[int, int], float]:
    """For each shape of (rows, context) the fastest of several times, once a second one confirms it: what else ran
    meanwhile is not the model's cost. They are timed in turns, as noise comes in bursts."""
    times: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    while pending := [shape for shape, known in times.items() if _is_open(known)]:
        for shape in pending:
            run(*shape)  # the first of its size prepares kernels
            first()
            began = time.perf_counter()
            run(*shape)
            times[shape].append((time.perf_counter() - began) * 1e3)
            times[shape].sort()
    for (rows, _), known in times.items():
        if known[0] <= 0 or known[1] > WILD * known[0]:
            raise NoMeasurement(f"Passes of {rows} rows took {', '.join(f'{t:.3g}' for t in known)} ms.")
    return {shape: known[0] for shape, known in times.items()}


def _is_open(times: SequenceOf[float]) -> bool:
    if len(times) < FEWEST_REPEATS:
        return True
    most = MOST_IF_WILD if times[1] > WILD * times[0] else MOST_REPEATS
    return times[1] > CONFIRMED * times[0] and len(times) < most


def _increasing(values: SequenceOf[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """More rows never cost less: the noise that says so is taken out from the right."""
    return np.minimum.accumulate(np.asarray(values)[::-1])[::-1]


def _prior(rows: SequenceOf[int]) -> NDArray[np.float64]:
    """How far costs may be from what was measured, in the order of `CostModel._belief`: float64 [costs, costs]."""
    places = np.log2([*rows, 2 * rows[-1]])
    near = np.exp(-abs(places[:, None] - places) / NEAR)
    n = len(rows)
    prior = np.zeros((2 + 2 * n, 2 + 2 * n))
    prior[0, 0] = BUSY**2
    for first, size, (together, alone) in ((1, n + 1, BASE), (2 + n, n, CONTEXT)):
        prior[first : first + size, first : first + size] = together**2 * near[:size, :size] + alone**2 * np.eye(size)
    return prior
