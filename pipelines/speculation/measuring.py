"""Measuring: times passes of the target and of models that draft, as far as there is time, and estimates the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ..model.timing import NoMeasurement, Run, Timing, take
from .cost import TILE_ROWS, UNTILED_ROWS, CostModel, increasing
from .draft_cost import DraftCost

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 25, 32, 33, 64)  # kernels process rows in fours
CHANGED = 4  # index of the size that precedes one of the first size when a change of size is timed
EARLY = (5, 9, 3, 17, 4, 33)  # the most informative sizes, which come first in case time runs out
CONTEXTS = (64, 1984)  # cached tokens: a short and a long context
LONGER = 2  # times the short context: a longer one tells more than chance would
CATCH_UP_ROWS = 64
BEGINNING_ROWS = 2  # of the first pass for a draft: a head's come from the target then (see `HeadModel.blind_pass`)
OTHERS = 2  # passes after which the weights of a model that drafts are in the processor's cache as far as they fit
LEAST_ROW = 0.02  # least estimate for one more row, as a share of the smallest pass
SHORT_SHARE = 0.5  # most that the short context can take of a pass
TOKEN_SHARE = 2e-5  # bytes of a token's keys and values for each byte of weights, in models of 1 to 8 billion

# Additional errors of estimates, as standard deviations of the logarithm: of the time for a number of rows,
# interpolated and extrapolated; of the time for context, from fewer rows and from the number of bytes.
BETWEEN, BEYOND = 0.2, 0.6
WIDER, BY_BYTES = 0.4, 0.7


def measure(
    target: Run,
    drafts: Mapping[str, Run],
    max_context: int,
    least_rows: int = 2,
    most_rows: int | None = None,
    token_share: float = TOKEN_SHARE,
    budget_s: float = math.inf,
) -> CostModel:
    """Time passes of the target, with `least_rows` to `most_rows` rows, and of the models that draft, by name. Raises
    NoMeasurement.

    max_context: the most tokens that the caches can hold, those of the pass included.
    budget_s: after this many seconds only indispensable passes are begun. Costs that were not measured are estimated,
        and corrected by later passes.
    token_share: bytes of a token's keys and values for each byte of the target's weights.
    """
    most = min(max_context - 1, most_rows or max_context)
    rows = tuple(n for n in sorted({least_rows, *ROWS}) if least_rows <= n <= most)
    if len(rows) < 2:
        raise NoMeasurement(f"No two sizes of a pass can be timed between {least_rows} and {most} rows.")
    short, long = (max(0, min(context, max_context - rows[-1])) for context in CONTEXTS)
    few = sorted({*rows[:2], rows[len(rows) // 2], rows[-1]})  # a single row has an attention kernel of its own
    tiles = [UNTILED_ROWS + more for more in (0, 1) if most > UNTILED_ROWS and max_context > UNTILED_ROWS + short]
    at_short = {n: Timing(target, n, short) for n in (*rows, *tiles)}
    at_long = {n: Timing(target, n, long) for n in few} if long > LONGER * short else {}
    of_drafts = {
        name: _draft_timings(draft, lambda: target(rows[0], short), max_context, short, long)
        for name, draft in drafts.items()
    }
    changed = Timing(target, rows[0], short, before=lambda: target(rows[min(CHANGED, len(rows) - 1)], short))
    first, second, *others = sorted(rows, key=lambda n: (n != rows[0], EARLY.index(n) if n in EARLY else len(EARLY), n))
    at_short[first].num_needed, at_short[second].num_needed = 2, 1
    needed = [at_short[first], *(timing for timings in of_drafts.values() for timing in timings[:2]), at_short[second]]
    catching_up = [timing for timings in of_drafts.values() for timing in timings[2:]]
    early, late = others[: len(EARLY)], [*others[len(EARLY) :], *tiles]
    after_long = list(at_long.values())
    more = [*after_long[:1], *catching_up, *(at_short[n] for n in early), changed, *(at_short[n] for n in late)]
    take(list(dict.fromkeys((*needed, *more, *after_long))), budget_s)
    short_ms, base_doubt = _filled(rows, at_short)
    slope, context_doubt = _slopes(rows, short_ms, at_long, short, long - short, token_share)
    base = increasing(short_ms - slope * short)
    if base[-1] <= base[0]:  # drafts would seem free, and nothing would show what rows cost
        base, base_doubt = base[0] * (1 + LEAST_ROW * (np.array(rows) - rows[0])), (BEYOND,) * len(rows)
    row_share = (short_ms[-1] - short_ms[0]) / (rows[-1] - rows[0]) / short_ms[0]
    return CostModel(
        rows,
        tuple(base.tolist()),
        tuple(slope.tolist()),
        {name: _draft_cost(*timings, float(row_share), token_share) for name, timings in of_drafts.items()},
        _is_tiled([at_short[n].ms for n in tiles]),
        base_doubt,
        context_doubt,
        _change_ms(float(short_ms[0]), changed),
    )


def measure_at_fixed_size(
    target: Run,
    drafts: Mapping[str, Run],
    max_context: int,
    most_rows: int,
    token_share: float = TOKEN_SHARE,
    budget_s: float = math.inf,
) -> CostModel:
    """As `measure`, for a target whose passes all take as long as one of `most_rows` rows, whatever the context."""
    if most_rows < 2:
        raise NoMeasurement("Every pass has a single row, which leaves none for drafts.")
    short = max(0, min(CONTEXTS[0], max_context - most_rows))
    one = Timing(target, 1, short, num_needed=2)
    of_drafts = {
        name: _draft_timings(draft, lambda: target(1, short), max_context, short, short)
        for name, draft in drafts.items()
    }
    take(list(dict.fromkeys((one, *(timing for timings in of_drafts.values() for timing in timings)))), budget_s)
    assert one.ms is not None
    costs = {name: _draft_cost(*timings, 0.0, token_share) for name, timings in of_drafts.items()}
    return CostModel((1, most_rows), (one.ms, one.ms), (0.0, 0.0), costs, False, (one.doubt, one.doubt), (0.0, 0.0))


def _filled(rows: SequenceOf[int], timings: Mapping[int, Timing]) -> tuple[NDArray[np.float64], tuple[float, ...]]:
    """The time of a pass in ms for each of `rows`, and its error. Sizes that were not timed are interpolated, or
    extrapolated on the assumption that each row adds the same to a fixed time for reading the weights."""
    known = {n: ms for n in rows if (ms := timings[n].ms) is not None}
    sizes, times = list(known), increasing(list(known.values()))
    last = sizes[-1]
    if last < rows[-1]:
        row_ms = max((times[-1] - times[0]) / (last - sizes[0]), LEAST_ROW * times[0])
        sizes, times = [*sizes, rows[-1]], np.append(times, times[-1] + row_ms * (rows[-1] - last))
    doubt = tuple(timings[n].doubt if n in known else BETWEEN if n < last else BEYOND for n in rows)
    return np.interp(rows, sizes, times), doubt


def _slopes(
    rows: SequenceOf[int],
    short_ms: NDArray[np.float64],
    at_long: Mapping[int, Timing],
    short: int,
    num_tokens: int,
    token_share: float,
) -> tuple[NDArray[np.float64], tuple[float, ...]]:
    """The time in ms that each token of context adds to a pass, for each of `rows`, and its error.

    The short context has `short` tokens, the longer one `num_tokens` more. If the longer one was not timed, keys and
    values are assumed to be read as fast as the weights. Other programs can slow a pass over it so much that the short
    context would seem to take longer than its whole pass: it is taken to need at most the share SHORT_SHARE.
    """
    by_bytes = token_share * short_ms[0] * np.sqrt(np.divide(rows, rows[0]))
    known = {n: ms for n, timing in at_long.items() if (ms := timing.ms) is not None}
    if not known:
        return by_bytes, (BY_BYTES,) * len(rows)
    long_ms = np.interp(rows, list(known), increasing(list(known.values())))
    slope = (long_ms - short_ms).clip(0.0) / num_tokens
    last = max(known)
    wider = slope[rows.index(last)] * np.sqrt(np.divide(rows, last))
    slope = np.where(np.asarray(rows) <= last, slope, np.maximum(wider, by_bytes))
    most = SHORT_SHARE * short_ms / max(short, 1)
    is_sure = not any(at_long[n].doubt for n in known) and bool((slope <= most).all())
    return increasing(np.minimum(slope, most)), tuple(0.0 if is_sure and n <= last else WIDER for n in rows)


def _draft_timings(
    draft: Run, before: Callable[[], object], max_context: int, short: int, long: int
) -> tuple[Timing, Timing, Timing, Timing]:
    """Timings of a model that drafts: of a token that follows another, of the first two of a draft, of these with
    several to catch up with, and of the same after a longer context. As in use, a pass of the target `before` the first
    one has displaced the model's weights from the processor's cache, and the second one has another number of rows."""

    def two(rows: int, context: int) -> None:
        draft(rows, context)
        draft(1, context + rows)

    def others() -> None:
        for _ in range(OTHERS):
            draft(1, short)

    more = min(CATCH_UP_ROWS, max_context - short - 2)
    far = max(short, min(long, max_context - more - 2))
    one, first = Timing(draft, 1, short, 2, others), Timing(two, BEGINNING_ROWS, short, 2, before)
    near = Timing(two, 1 + more, short, 0, before)
    return one, first, near, Timing(two, 1 + more, far, 0, before) if far > short else near


def _draft_cost(
    one: Timing, first: Timing, near: Timing, far: Timing, row_share: float, token_share: float
) -> DraftCost:
    """If catching up was not timed, a row is assumed to take the share `row_share` of a pass, as with the target."""
    if one.ms is None:
        return DraftCost(0.0)
    first_ms = 2 * one.ms if first.ms is None else first.ms
    row_ms, context_ms = row_share * one.ms, token_share * one.ms
    if near.ms is not None:
        if far.ms is not None:
            context_ms = max(0.0, (far.ms - near.ms) / max(far.context - near.context, 1) / near.rows)
        row_ms = (near.ms - first_ms) / max(near.rows - first.rows, 1) - context_ms * near.context
    row_ms = max(0.0, row_ms)
    begin_ms = max(0.0, first_ms - 2 * one.ms - (first.rows - one.rows) * row_ms)
    return DraftCost(one.ms, row_ms, context_ms, begin_ms)


def _change_ms(same_ms: float, changed: Timing) -> float:
    """How much longer a pass takes after one of another size; 0 if there was no time to find out.

    same_ms: what it takes after one of its own size, judged from the timings of all sizes: the machine may have been
    slow while this one was timed.
    """
    return max(0.0, changed.ms - same_ms) if changed.ms is not None and not changed.doubt else 0.0


def _is_tiled(tiles_ms: SequenceOf[float | None]) -> bool:
    """Whether the first row of a tile costs more than half of the whole tile. If there was no time to find out, this is
    assumed: cutting a prompt needlessly costs one more small pass, while not cutting it where there are tiles can take
    half as long again."""
    if not tiles_ms:
        return False
    untiled_ms, tiled_ms = tiles_ms
    if untiled_ms is None or tiled_ms is None:
        return True
    return tiled_ms - untiled_ms > TILE_ROWS / 2 * (untiled_ms / UNTILED_ROWS)
