"""In passes of how many rows a model keeps its bits, and whether it does: every way to break the promise is noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from outrider.pipelines.model import exactness
from outrider.pipelines.model.exactness import exact_rows, find_rows, is_exact
from outrider.pipelines.model.paged_model import BLOCK_SIZE, PagedModel
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


@pytest.mark.parametrize("max_context", [32, 100, 200, 512, 4096])
@pytest.mark.parametrize("kernels", [in_classes(2, 81), in_classes(5)])
def test_no_text_is_fed_beyond_the_context_of_the_model(kernels, max_context):
    """A table of positions has no more rows than that; passes of more rows are of several requests."""
    model, ends = Kernels(kernels), []
    model.before_pass = lambda windows: ends.extend(window.start + len(window.tokens) for window in windows)
    assert find_rows(model, max_context=max_context) == find_rows(Kernels(kernels))
    assert exact_rows(model, max_context) is not None
    assert max(ends) <= max_context


def test_larger_passes_are_tried_for_a_limited_time_only(monkeypatch):
    monkeypatch.setattr(exactness, "PATIENCE_S", 0.0)
    assert find_rows(Kernels(in_classes())) == Rows(1, exactness.READING, 1)


BREAKING = {
    "the length of a window": lambda rows, projected, window: len(window.tokens),
    "a pass of one row": lambda rows, projected, window: rows > 1,
    "a pass of many rows": lambda rows, projected, window: rows > 30,
    "the projection of one row": lambda rows, projected, window: projected > 1,
    "one token behind a long context": lambda rows, projected, window: window.start > 1500 and len(window.tokens) == 1,
    "where a window begins": lambda rows, projected, window: window.start > 1500 and window.start % 2,
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


class BehindAndBeside(Kernels):
    """Differs behind a long context where another is in the pass."""

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


@pytest.mark.parametrize("make", [Batching, BehindAndBeside])
def test_batches_that_change_bits_are_noticed(make):
    assert not is_exact(make())


@pytest.mark.parametrize("make", [Requantizing, Sharing])
def test_traces_of_rejected_tokens_and_scattered_blocks_are_noticed(make):
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
