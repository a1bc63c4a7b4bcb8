"""In passes of how many rows a model keeps its bits, and whether it does: every way to break the promise is noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from outrider.pipelines.model import exactness, tuning
from outrider.pipelines.model.exactness import exact_rows, find_rows, is_exact
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.target import Rows, Window

from ..fakes import FakeModel, random_rule
from ..real import Models

LITTLE = np.float32(1e-5)


class Kernels(FakeModel):
    """Its logits differ a little with the kernel that `of` names for the windows of a pass, and for each of them.

    `of(rows, projected, window)` is told the numbers of rows of the pass, as it is filled up, and of those that are
    projected on the vocabulary.
    """

    def __init__(self, of: Callable[[int, int, Window], int]) -> None:
        super().__init__(random_rule(), 4, BLOCK_SIZE)
        self._of = of

    def forward(self, windows: Sequence[Window]) -> list[np.ndarray]:
        assert windows, "a pass of nothing"
        rows = max(self.rows.fewest, sum(len(window.tokens) for window in windows))
        projected = max(self.rows.fewest_projected, sum(window.num_rows for window in windows))
        logits = super().forward(windows)
        kernels = [self._of(rows, projected, window) for window in windows]
        return [each + LITTLE * kernel for each, kernel in zip(logits, kernels, strict=True)]


def in_classes(*begins: int) -> Callable[[int, int, Window], int]:
    """A kernel for each class of row counts."""
    return lambda rows, projected, window: sum(rows >= begin for begin in begins)


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        (in_classes(), Rows(1, 512, 1)),
        (in_classes(2), Rows(2, 512, 1)),
        (in_classes(2, 81), Rows(2, 80, 1)),  # AVX2
        (in_classes(2, 5, 81), Rows(5, 80, 1)),  # the same with long inner dimensions
        (in_classes(5), Rows(5, 512, 1)),  # bf16 with AMX
        (lambda rows, projected, window: projected > 1, Rows(1, 512, 2)),
        (lambda rows, projected, window: (rows > 1) + (projected > 3), Rows(2, 512, 4)),
        (in_classes(*range(0, 512, 8)), None),
        (in_classes(9), None),
        (in_classes(2, 17), Rows(2, 16, 1)),  # AVX2, a small outer dimension: shorter than some windows of the check
        (lambda rows, projected, window: (projected > 32) + (rows > 64), Rows(1, 32, 1)),
    ],
)
def test_the_longest_range_of_rows_is_found_that_begins_with_the_fewest(kernels, expected):
    model = Kernels(kernels)
    assert find_rows(model) == expected
    assert model.rows == (expected or Rows())
    if expected is not None:
        assert is_exact(model)


@pytest.mark.parametrize(("dearest", "expected"), [(2, None), (4, None), (5, Rows(5, 80, 1))])
def test_what_is_too_dear_is_not_tried_any_further(dearest, expected):
    model = Kernels(in_classes(2, 5, 81))
    longest = []
    model.before_pass = lambda windows: longest.append(sum(len(window.tokens) for window in windows))
    assert find_rows(model, lambda fewest: fewest <= dearest) == expected
    assert expected is not None or longest[-1] <= 5


def test_whether_a_second_row_is_too_dear_is_found_out_by_passes_of_one_row_and_of_two():
    """Before any other passes, of which a large model runs one a second."""
    model = Kernels(lambda rows, projected, window: (rows > 1) + (projected > 1))
    assert find_rows(model, lambda fewest: False) is None
    assert model.num_passes == exactness.PROBED + exactness.PROBED // 2


@pytest.mark.parametrize("fewest", range(1, 17))
def test_the_fewest_projected_rows_are_found_by_few_passes(fewest: int):
    model = Kernels(lambda rows, projected, window: projected >= fewest)
    assert exactness._fewest_projected(model) == fewest
    assert model.num_passes <= 9


@pytest.mark.parametrize("max_context", [32, 100, 200, 512, 4096])
@pytest.mark.parametrize("kernels", [in_classes(2, 81), in_classes(5)])
def test_no_text_is_fed_beyond_the_context_of_the_model(kernels, max_context):
    """A table of positions has no more rows than that; passes of more rows are of several requests."""
    model, ends = Kernels(kernels), []
    model.before_pass = lambda windows: ends.extend(window.start + len(window.tokens) for window in windows)
    assert find_rows(model, max_context=max_context) == find_rows(Kernels(kernels))
    assert exact_rows(model, max_context) is not None
    assert max(ends) <= max_context


@pytest.mark.parametrize(("pass_s", "most"), [(0.01, 512), (0.17, 80), (1.0, 64), (60.0, 64)])
def test_larger_passes_are_tried_for_a_limited_time_only(monkeypatch, pass_s, most):
    """But however slow the machine is, up to those that read prompts at a fair speed: the range is kept for good."""
    model, now = Kernels(in_classes()), [0.0]

    def wait(windows: Sequence[Window]) -> None:
        now[0] += pass_s

    model.before_pass = wait
    monkeypatch.setattr(exactness.time, "perf_counter", lambda: now[0])
    assert find_rows(model) == Rows(1, most, 1)


BREAKING = {
    "the length of a window": lambda rows, projected, window: len(window.tokens),
    "a pass of one row": lambda rows, projected, window: rows > 1,
    "a pass of many rows": lambda rows, projected, window: rows > 30,
    "the projection of one row": lambda rows, projected, window: projected > 1,
    "one token behind a long context": lambda rows, projected, window: window.start > 1500 and len(window.tokens) == 1,
    "where a window begins": lambda rows, projected, window: window.start > 1500 and window.start % 2,
    "a long window": lambda rows, projected, window: len(window.tokens) > 100 and window.start == 0,
    "one token behind a shorter context": lambda rows, projected, window: (
        100 < window.start < 1500 and len(window.tokens) == 1
    ),
    "a wide window behind a long context": lambda rows, projected, window: (
        window.start > 1500 and len(window.tokens) > 8
    ),
    "the end of the longest of several texts": lambda rows, projected, window: (
        len(window.blocks) == 3 and 44 < window.start < 54
    ),
}


@pytest.mark.parametrize("what", BREAKING)
def test_whatever_bits_depend_on_is_noticed(what):
    assert not is_exact(Kernels(BREAKING[what]))


class Batching(Kernels):
    """Differs where several are in a pass."""

    def __init__(self) -> None:
        super().__init__(in_classes())

    def forward(self, windows: Sequence[Window]) -> list[np.ndarray]:
        return [each + LITTLE * (len(windows) > 1) for each in super().forward(windows)]


class BatchingMany(Kernels):
    """Differs where more than three are in a pass."""

    def __init__(self) -> None:
        super().__init__(in_classes())

    def forward(self, windows: Sequence[Window]) -> list[np.ndarray]:
        return [each + LITTLE * (len(windows) > 3) for each in super().forward(windows)]


class InRows(Kernels):
    """Some rows of long passes differ."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__(in_classes())
        self._differing = np.zeros(exactness.TRIED[-1], bool)
        self._differing[begin:end] = True

    def forward(self, windows: Sequence[Window]) -> list[np.ndarray]:
        logits = [each.copy() for each in super().forward(windows)]
        ends = [*accumulate(len(window.tokens) for window in windows)]
        if ends[-1] > 100:
            for each, end in zip(logits, ends, strict=True):
                each[self._differing[end - len(each) : end]] += LITTLE
        return logits


class BehindAndBeside(Kernels):
    """Differs after a long context if another text is in the pass."""

    def __init__(self) -> None:
        super().__init__(in_classes())

    def forward(self, windows: Sequence[Window]) -> list[np.ndarray]:
        breaks = len(windows) > 1 and windows[0].start > 1500
        return [each + LITTLE * breaks for each in super().forward(windows)]


class Requantizing(FakeModel):
    """A rejected token leaves a trace in what was accepted, as it does with keys quantized by channel."""

    def _logits(self, window: Window) -> np.ndarray:
        last = window.blocks[(window.start + len(window.tokens) - 1) // BLOCK_SIZE]
        return super()._logits(window) + LITTLE * self._slots[last].max()


class Sharing(FakeModel):
    """Differs where a text begins with a block that another has computed, in a scattered table."""

    def _logits(self, window: Window) -> np.ndarray:
        is_scattered = len(window.blocks) > 1 and abs(window.blocks[1] - window.blocks[0]) > 1
        return super()._logits(window) + LITTLE * is_scattered


@pytest.mark.parametrize(("begin", "end"), [(exactness.PROBED, 512), (200, 480), (504, 512)])
def test_rows_of_long_passes_that_differ_are_noticed(begin, end):
    """Though they are not compared when the range is looked for."""
    model = InRows(begin, end)
    assert find_rows(model) == Rows(1, 512, 1)
    assert not is_exact(model)


class Leaving(FakeModel):
    """A long window leaves something else in the cache than its own rows have seen."""

    def forward(self, windows: Sequence[Window]) -> list[np.ndarray]:
        logits = super().forward(windows)
        for window in windows:
            if len(window.tokens) > 300 and window.start == 0:
                self._slots[window.blocks[8]] += 1
        return logits


@pytest.mark.parametrize("make", [Batching, BatchingMany, BehindAndBeside])
def test_batches_that_change_bits_are_noticed(make):
    assert not is_exact(make())


@pytest.mark.parametrize(("rows", "most_rows"), [(Rows(1, 512), 1900), (Rows(2, 80, 2), 800), (Rows(2, 16, 2), 620)])
def test_the_check_takes_seconds_with_a_large_model(rows, most_rows):
    """As far as its rows tell. One pass of as many as may be is among them, over all short texts."""
    model, passes = Kernels(in_classes()), []
    model.rows = rows
    model.before_pass = lambda windows: passes.append((sum(len(window.tokens) for window in windows), len(windows)))
    assert is_exact(model)
    assert sum(max(rows.fewest, num_rows) for num_rows, _ in passes) <= most_rows
    assert len(passes) <= 110
    assert max(num_windows for num_rows, num_windows in passes if num_rows == rows.most) > 5


def test_an_8b_model_at_200_ms_a_pass_is_found_exact_within_the_time_of_the_search(monkeypatch):
    """On two cores with VNNI, where each further row takes 12 ms. Loading it and timing its passes takes 30 s."""
    model, now = Kernels(in_classes()), [0.0]

    def runs(windows: Sequence[Window]) -> None:
        now[0] += 0.2 + 0.012 * sum(len(window.tokens) for window in windows)

    model.before_pass = runs
    monkeypatch.setattr(exactness.time, "perf_counter", lambda: now[0])
    assert exact_rows(model, until=tuning.SEARCH_S - 30) == Rows(1, 64, 1)


@pytest.mark.parametrize("make", [Requantizing, Sharing, Leaving])
def test_traces_of_rejected_tokens_scattered_blocks_and_long_windows_are_noticed(make):
    assert not is_exact(make(random_rule(), 4, BLOCK_SIZE))
    assert is_exact(FakeModel(random_rule(), 4, BLOCK_SIZE))


@pytest.mark.parametrize("max_context", [2, 8, 32, 33, 64, 100])
def test_a_model_of_short_context_is_tried_within_it(max_context):
    model = FakeModel(random_rule(), 4, BLOCK_SIZE)
    ends = []
    model.before_pass = lambda windows: ends.extend(window.start + window.num_rows for window in windows)
    assert is_exact(model, max_context)
    assert max(ends) <= max_context + exactness.MOST_REJECTED


class RarelyBetraying(Kernels):
    """Single rows go through another kernel, which shows in few of them only."""

    def __init__(self) -> None:
        super().__init__(lambda rows, projected, window: rows == 1 and window.start == exactness.PROBED + 3)


def test_what_shows_in_few_rows_only_is_found_by_the_check_and_more_rows_are_taken():
    assert find_rows(RarelyBetraying()) == Rows(1, 512, 1)
    model = RarelyBetraying()
    assert exact_rows(model) == model.rows == Rows(2, 512, 2)
    assert exact_rows(RarelyBetraying(), is_affordable=lambda fewest: fewest == 1) is None
    assert exact_rows(Kernels(BREAKING["the length of a window"])) is None


@pytest.mark.parametrize("number", [3, 60])
def test_no_pass_is_run_after_the_time_that_is_given(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    model = Kernels(lambda rows, projected, window: 0)
    monkeypatch.setattr(exactness.time, "perf_counter", lambda: float(model.num_passes))
    with pytest.raises(TimeoutError, match="too long"):
        exact_rows(model, until=number - 0.5)
    assert model.num_passes == number


def test_the_embedded_target_is_exact_in_the_rows_that_are_found_and_no_longer_passes_are_run(models: Models):
    rows = models.target.rows
    assert rows.fewest <= 2
    assert rows.most >= exactness.READING
    with pytest.raises(ValueError, match=f"at most {rows.most}"):
        models.target.forward([Window([1] * (rows.most + 1), 0, range(17))])


def test_the_check_of_the_embedded_target_holds(embedded_pair: Path):
    model = PagedModel(embedded_pair / "target", 4)
    assert find_rows(model) is not None
    assert is_exact(model)
