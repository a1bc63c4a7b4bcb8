"""Tuning: how to compile a model for this machine so that it is fast and, where affordable, exact."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from ..errors import InvalidOption
from .contest import BESIDE_BYTES, NUM_BLOCKS, Contest
from .exactness import CHECKED_TOKENS, FILLED, exact_rows, is_exact
from .first_layers import FirstLayers, first_layers
from .paged_model import PROPERTIES, PagedModel
from .pair import Skipping
from .price import Price
from .processor import GROUP_SIZE, PRECISION, fastest_precision
from .profile import keep, kept
from .split_model import SplitModel
from .target import ANY_ROWS, Rows
from .threads import PLACE, is_quiet, other_numbers, with_threads

# How many activations share a scale if weights are int8 or int4. The plugin's default is 32. Larger groups are faster
# and coarser; none here is larger than a usual group of int4 weights.
CANDIDATES: tuple[Mapping[str, int], ...] = ({}, {GROUP_SIZE: 64}, {GROUP_SIZE: 128})
LONGEST = (2048, 4096)  # values of `Compilation.longest` to try, the one that was fastest on every processor first
FAIR = 1.1  # highest price of exactness that is paid by default, in plain passes of one row
SEARCH_S = 90.0  # longest search for exactness by default
THREADS_S = 30.0  # after which no further number of threads is tried
EARLY = 1.15  # tolerance of the first estimate of that price
WORTH_IT = 0.95  # an alternative must take at most this share of the default's time
AS_FAST = 1.1  # the same for passes of one row, if only larger passes are to gain; as exact as such times are

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compilation:
    """How a target is compiled and run on this machine.

    exact: whether the same seed gives the same text in every mode, see `exactness`.
    precision: the type that it computes in, such as "f32" or "bf16".
    longest: matrix products with a longer inner dimension are summed in parts; None: never.
    rows: the numbers of rows that passes keep to.
    price: time of an exact pass of one token over that of a plain one, on a GPU of an answer with its prompt, also
        where that was too much; None if nothing exact was found, or if nothing was measured.
    undecided: whether finding out about exactness would have taken too long.
    num_threads: how many it runs on; None: as many as OpenVINO chooses.
    """

    exact: bool
    precision: str
    longest: int | None = None
    rows: Rows = ANY_ROWS
    price: float | None = None
    undecided: bool = False
    num_threads: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for numbers with which nothing can be compiled, as in a damaged file."""
        if any(value is not None and value < 1 for value in (self.longest, self.num_threads)):
            raise ValueError(f"nothing can be compiled like this: {self}")

    def load(
        self,
        folder: Path,
        num_blocks: int,
        properties: Mapping[str, Any],
        taps: Sequence[int] = (),
        skipping: Skipping | None = None,
    ) -> PagedModel:
        """Raises what PagedModel raises."""
        given = self._given(properties)
        model: PagedModel
        if skipping is None:
            model = PagedModel(folder, num_blocks, given, self.exact, self.longest, taps)
        else:
            model = SplitModel(folder, num_blocks, skipping, given, self.exact, self.longest, taps)
        model.rows = self.rows
        return model

    def load_first(self, folder: Path, num_blocks: int, properties: Mapping[str, Any], num_layers: int) -> PagedModel:
        """Only the first layers. Raises what FirstLayers raises."""
        given = self._given(properties)
        model = FirstLayers(folder, num_blocks, num_layers, given, self.exact, self.longest)
        model.rows = self.rows
        return model

    def _given(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        return {PRECISION: self.precision, **with_threads(self.num_threads), **properties}


Load: TypeAlias = Callable[[Compilation, int], PagedModel]  # with a cache of so many blocks
IsFaster: TypeAlias = Callable[[Sequence[float]], bool]  # by the times of `ROWS`, in those of another form


def fastest_properties(folder: Path) -> dict[str, int]:
    """The fastest of CANDIDATES that keeps the model exact, by measurement; of a large model, of its first layers.

    All are compiled as suits the first. Raises what PagedModel raises.
    """
    model: PagedModel | None
    model, compilation = load_target(folder, NUM_BLOCKS, CANDIDATES[0], exact=True)
    number = first_layers(folder, BESIDE_BYTES)

    def load(properties: Mapping[str, int], num_blocks: int) -> PagedModel:
        if number is None:
            return compilation.load(folder, num_blocks, properties)
        return compilation.load_first(folder, num_blocks, properties, number)

    def accepted(properties: Mapping[str, int], model: PagedModel) -> Mapping[str, int] | None:
        return properties if not compilation.exact or is_exact(model) else None

    contest = Contest(load, CANDIDATES[0], model if number is None else None)
    model = None  # which only the contest holds now
    for properties in CANDIDATES[1:]:
        contest.challenge(properties, lambda relative: fmean(relative) < WORTH_IT, accepted)
    return dict(contest.form)


def load_target(
    folder: Path,
    num_blocks: int,
    properties: Mapping[str, Any],
    exact: bool | None = None,
    max_context: int = CHECKED_TOKENS,
    path: Path | None = None,
    taps: Sequence[int] = (),
    skipping: Skipping | None = None,
) -> tuple[PagedModel, Compilation]:
    """The target compiled in the best way for this machine, and how. Of a large model, which would take minutes to be
    tried as a whole, that is found out with its first layers, and verified.

    exact: True: the same bits however tokens are split into passes, if possible at all. None: only if that makes a
        pass of one token at most FAIR times as long, as far as times that scatter can tell, and if it can be found out
        within SEARCH_S. False: whatever is fastest.
    max_context: the longest text that the model can be tried with.
    path: a file that remembers the result, since trying takes long with a large model.
    taps: layers whose outputs a head reads.
    skipping: how the target drafts by itself: it is a `SplitModel` then.

    Raises what PagedModel raises.
    """

    def load(how: Compilation, num_blocks: int) -> PagedModel:
        return how.load(folder, num_blocks, properties, taps, skipping)

    known = None if path is None else kept(path, Compilation)
    if known is not None:
        return load(known, num_blocks), known
    limit, until = (FAIR, time.perf_counter() + SEARCH_S) if exact is None else (math.inf, math.inf)
    number = first_layers(folder, BESIDE_BYTES)

    def load_first(how: Compilation, num_blocks: int) -> PagedModel:
        return load(how, num_blocks) if number is None else how.load_first(folder, num_blocks, properties, number)

    def best(tried: Load, likely: Compilation | None = None) -> tuple[Contest[Compilation], Compilation]:
        search = _Search(folder, properties, tried, max_context, limit, until, likely)
        undecided = False
        try:
            contest = None if exact is False else search.run()
        except TimeoutError:
            contest, undecided = None, True
            log.warning(
                "%s is loaded without exactness: whether it can be exact at a fair price was not found out within "
                "%.0f s. Ask for exactness to have it anyway.",
                folder, SEARCH_S,
            )  # fmt: skip
        if contest is None:
            contest = _fastest(properties, load_first)
        return contest, replace(contest.form, price=search.price, undecided=undecided)

    contest, found = best(load_first)
    if number is not None and found.exact:
        contest, found = best(load, found)
    model = contest.winner()[0] if number is None or found.exact else load(found, NUM_BLOCKS)
    if not found.exact:
        found = replace(found, rows=_quickest(model, found.rows))
        if exact is None and found.price is not None and not found.undecided and not is_quiet():
            log.warning(
                "An exact pass of %s seemed to take %.2f times as long as a plain one, so it is loaded without "
                "exactness. Other programs were busy: when they are not, `outrider doctor --again` tries anew.",
                folder, found.price,
            )  # fmt: skip
    if path is not None:
        keep(path, found)
    model.resize(num_blocks)
    return model, found


class _Search:
    """Searches for an exact way to compile the model, with the least padding.

    The processor's native precision is tried first. Where that is not exact, such as bf16 with AMX, f32 is no slower
    with compressed weights, because OpenVINO does not quantize activations in bf16. Next, kernels for long inner
    dimensions are avoided by summing in parts: in the shortest ones that are exact, or in longer ones if these are
    faster and need no more rows. The same goes for other numbers of threads. Nothing else is compared by time, since a
    large model takes seconds to load.

    limit: the longest that an exact pass of one token may take, in plain passes. Candidates that are clearly slower
        are dropped early, since the full check takes long with a large model.
    until: when to give up, by `time.perf_counter`.
    likely: what was found with the first layers of the model. It is taken if the whole model is as exact.
    price: of the candidate that was chosen, or of the one tried last, if it was exact or too slow to check.
    """

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, Any],
        load: Load,
        max_context: int,
        limit: float,
        until: float,
        likely: Compilation | None = None,
    ) -> None:
        self._folder = folder
        self._properties = properties
        self._load = load
        self._max_context = max_context
        self._limit = limit
        self._until = until
        self._likely = likely
        self._longest_inner = 0  # of the model, once it was loaded
        self._plain_s: dict[Compilation, float] = {}  # passes of one row, of each that was tried
        self._refused: dict[Compilation, int] = {}  # fewest rows with which each of them might do
        self.price: float | None = None

    def run(self) -> Contest[Compilation] | None:
        """Won by the first candidate that is exact, or by the same in longer parts or on other threads; None if nothing
        is exact. Raises TimeoutError."""
        if self._likely is not None and (contest := self._confirmed(self._likely)) is not None:
            return contest
        candidates = list(self._candidates())
        for few in FILLED:
            for i, candidate in enumerate(candidates):
                if self._refused.get(candidate, 0) > few:
                    continue
                model, found = self._tried(candidate, few)
                if model is not None and found is not None:
                    longer = [] if found.longest is None else self._cutting(candidates[i + 1 :], few)
                    contest = Contest(self._load, found, model)
                    model = None  # which only the contest holds now
                    for each in longer:
                        if self._is_won(contest, replace(each, rows=found.rows), _is_faster):
                            break
                    _try_threads(contest, self._properties, partial(self._is_won, contest))
                    return contest
                model = None
            candidates = [each for each in candidates if each in self._refused]
        return None

    def _confirmed(self, likely: Compilation) -> Contest[Compilation] | None:
        model = self._load(likely, 1)
        is_confirmed = is_exact(model, self._max_context, self._until)
        log.info("%s as %s is%s exact as a whole", self._folder, likely, "" if is_confirmed else " not")
        if not is_confirmed:
            return None
        self.price, least = self._costs(likely, model, likely.rows, self._limit)
        return None if least > self._limit else Contest(self._load, likely, model)

    def _candidates(self) -> Iterator[Compilation]:
        own, full = _precisions(self._properties)
        if own != full:
            yield Compilation(True, own)
        for longest in (None, *LONGEST):
            yield Compilation(True, full, longest)

    def _cutting(self, candidates: Sequence[Compilation], few: int) -> list[Compilation]:
        """Those that sum some products in parts, and that might do with passes of `few` rows."""
        return [
            each
            for each in candidates
            if each.longest is not None and each.longest < self._longest_inner and self._refused.get(each, 0) <= few
        ]

    def _is_won(self, contest: Contest[Compilation], form: Compilation, is_faster: IsFaster) -> bool:
        """Whether `form` is faster than what was found so far, and exact with no more rows."""
        price = self.price
        try:
            is_won = contest.challenge(
                form, is_faster, lambda form, model: self._checked(form, model, form.rows.fewest)
            )
        except TimeoutError:  # what was found so far is exact all the same
            is_won = False
        if not is_won:
            self.price = price
        return is_won

    def _tried(self, candidate: Compilation, few: int) -> tuple[PagedModel | None, Compilation | None]:
        """The model, if it is exact with passes of `few` rows at the least, within the limit."""
        self._refused.pop(candidate, None)
        if candidate.longest is not None and not candidate.longest < self._longest_inner:
            return None, None
        try:
            model = self._load(candidate, 1)
        except InvalidOption as error:
            if candidate.precision == _precisions(self._properties)[1]:
                raise
            log.info("The properties cannot be combined with %s: %s", candidate.precision, error)
            return None, None
        self._longest_inner = model.longest_inner
        found = self._checked(candidate, model, few)
        return (None, None) if found is None else (model, found)

    def _checked(self, candidate: Compilation, model: PagedModel, few: int) -> Compilation | None:
        """The candidate with its rows, if `model` is exact with passes of `few` rows at the least, within the limit."""
        self.price = None

        def is_affordable(fewest: int) -> bool:
            limit = EARLY * self._limit
            price, least = self._costs(candidate, model, Rows(fewest), limit)
            if least > limit:
                self.price = price
                if fewest <= FILLED[0]:  # sums in parts would need as many rows, so they are left out
                    self._longest_inner = 0
            elif fewest > few:
                self._refused[candidate] = fewest
            else:
                return True
            return False

        rows = exact_rows(model, self._max_context, is_affordable, self._until)
        log.info("%s as %s gives the same bits in passes of: %s", self._folder, candidate, rows or "no range")
        if rows is None:
            return None
        rows = _quickest(model, rows)
        self.price, least = self._costs(candidate, model, rows, self._limit)
        return None if least > self._limit else replace(candidate, rows=rows)  # in doubt, exactness is kept

    def _costs(self, candidate: Compilation, model: PagedModel, rows: Rows, limit: float) -> tuple[float, float]:
        """The time of an exact pass of one token over that of a plain one, both measured now, since the machine's speed
        changes from minute to minute, or over the plain pass of another candidate if that was faster. Then the lowest
        value of this that is plausible; passes are timed until it is clear whether that is within `limit`."""
        price = Price.measured(model, ANY_ROWS, rows, limit)
        own_s = price.plain_s
        detour = own_s / min([own_s, *(s for other, s in self._plain_s.items() if other != candidate)])
        self._plain_s[candidate] = min(own_s, self._plain_s.get(candidate, math.inf))
        return max(1.0, price.ratio * detour), price.least * detour


def _fastest(properties: Mapping[str, Any], load: Load) -> Contest[Compilation]:
    """Won by the fastest form, exact or not: in the processor's native precision or in f32, with long products summed
    in parts or on another number of threads if that gains enough without slowing down passes of one row."""
    own, full = (Compilation(False, precision) for precision in _precisions(properties))
    try:
        contest = Contest(load, own)
    except InvalidOption as error:
        if own == full:
            raise
        log.info("The properties cannot be combined with %s: %s", own.precision, error)
        contest = Contest(load, full)
    if contest.form != full:
        contest.challenge(full, lambda relative: fmean(relative) < 1)
    for longest in LONGEST:
        if longest < contest.longest_inner and contest.challenge(replace(contest.form, longest=longest), _is_faster):
            break
    _try_threads(contest, properties, contest.challenge)
    return contest


def _try_threads(
    contest: Contest[Compilation], properties: Mapping[str, Any], is_won: Callable[[Compilation, IsFaster], bool]
) -> None:
    """Try the form that was found on other numbers of threads, as far as there is time and no other program is busy,
    unless the properties say where it has to run."""
    if any(name in properties for name in PLACE):
        return
    until = time.perf_counter() + THREADS_S
    for number in other_numbers(contest.num_threads):
        if time.perf_counter() >= until or not is_quiet():
            return
        if is_won(replace(contest.form, num_threads=number), lambda relative: _is_faster(relative) and is_quiet()):
            log.info("%d threads are faster than the %d that OpenVINO chooses", number, contest.num_threads)


def _quickest(model: PagedModel, rows: Rows) -> Rows:
    """`rows`, or from two on if a second row makes a pass of one token faster: some kernels for a single row are slower
    than those for several. Sets `model.rows` to the result."""
    if rows.fewest == 1:
        two = replace(rows, fewest=2, fewest_projected=max(2, rows.fewest_projected))
        rows = two if Price.measured(model, rows, two).ratio < WORTH_IT else rows
    model.rows = rows
    return rows


def _precisions(properties: Mapping[str, Any]) -> tuple[str, str]:
    """The processor's native precision and the full one, or the one that the properties name."""
    return properties.get(PRECISION, fastest_precision()), properties.get(PRECISION, PROPERTIES[PRECISION])


def _is_faster(relative: Sequence[float]) -> bool:
    """By enough, and without slowing down passes of one row."""
    return relative[0] <= AS_FAST and fmean(relative) < WORTH_IT
