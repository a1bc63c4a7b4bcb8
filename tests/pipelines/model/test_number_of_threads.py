"""A target runs on the number of threads that is fastest, as far as that can be told and keeps the promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.pipelines.model import contest, tuning
from outrider.pipelines.model.processor import PRECISION
from outrider.pipelines.model.target import Rows
from outrider.pipelines.model.threads import PLACE

from .clock import Clock


@pytest.mark.parametrize("exact", [None, True, False])
@pytest.mark.parametrize("weight_bytes", [contest.BESIDE_BYTES, contest.BESIDE_BYTES + 1])
@pytest.mark.parametrize(
    ("threads", "chosen"),
    [
        ({8: (1.0, 1.0)}, None),
        ({8: (1.0, 1.0), 4: (0.9, 0.9)}, 4),
        ({8: (1.0, 1.0), 4: (0.97, 0.97)}, None),
        ({8: (1.0, 1.0), 4: (1.2, 0.5)}, None),  # slower where nothing is drafted
        ({8: (1.0, 1.0), 4: (0.9, 0.9), 16: (0.7, 0.7)}, 16),
        ({8: (1.0, 1.0), 4: (0.7, 0.7), 16: (0.9, 0.9)}, 4),
        ({8: (1.0, 1.0), 4: (0.9, 0.9), 16: (0.88, 0.88)}, 4),  # no faster than that by enough
    ],
)
def test_a_target_runs_on_the_number_of_threads_that_is_fastest(
    monkeypatch, tmp_path: Path, exact: bool | None, weight_bytes: int, threads: dict, chosen: int | None
) -> None:
    clock = Clock(monkeypatch, {"f32": 0.1})
    clock.threads, clock.weight_bytes = threads, weight_bytes
    for _ in range(2):
        model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact, path=tmp_path / "kept")
        assert (compilation.num_threads, model.num_threads, model.num_blocks) == (chosen, chosen or 8, 4)
        assert compilation.exact == (exact is not False)
    clock.loaded.clear()
    tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact, path=tmp_path / "kept")
    assert len(clock.loaded) == 1, "it was remembered"


@pytest.mark.parametrize("fewest", [{}, {"4 threads": 5}])
def test_where_exactness_counts_a_faster_number_of_threads_has_to_be_as_exact(monkeypatch, fewest) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0}, "none" if fewest else "4 threads", fewest)
    clock.threads = {8: (1.0, 1.0), 4: (0.5, 0.5), 2: (0.9, 0.9)}
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, True)
    assert (compilation.exact, compilation.num_threads, model.num_threads, model.rows) == (True, 2, 2, Rows(1))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", PLACE)
def test_where_the_user_says_where_a_target_runs_no_other_number_of_threads_is_tried(monkeypatch, name, exact) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0})
    clock.threads = {8: (1.0, 1.0), 4: (0.5, 0.5)}
    given = {PRECISION: "f32", name: 8}
    assert tuning.load_target(Path(), 4, given, exact)[1].num_threads is None
    assert all(precision == "f32" for precision, _ in clock.loaded)


@pytest.mark.parametrize("exact", [True, False])
def test_a_large_model_tries_numbers_of_threads_only_as_long_as_there_is_time(monkeypatch, exact: bool) -> None:
    clock = Clock(monkeypatch, {"f32": tuning.THREADS_S / 10})
    clock.threads = {8: (1.0, 1.0), 4: (1.0, 1.0), 2: (0.5, 0.5)}
    assert tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact)[1].num_threads is None
    clock.takes["f32"] /= 10
    assert tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact)[1].num_threads == 2


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("quiet", "chosen"), [([], None), ([1], None), ([1, 2], 4), ([1, 2, 3], 4), ([1, 2, 3, 4], 2)])
def test_a_machine_that_is_busy_with_other_programs_does_not_decide_about_threads(monkeypatch, quiet, chosen, exact):
    """Whether they are busy when a number is begun with or when it seems to be faster."""
    clock = Clock(monkeypatch, {"f32": 0.1})
    clock.threads = {8: (1.0, 1.0), 4: (0.8, 0.8), 2: (0.5, 0.5)}
    looked = iter(range(1, 5))
    monkeypatch.setattr(tuning, "is_quiet", lambda: next(looked) in quiet)
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact)
    assert (compilation.num_threads, model.num_threads, compilation.exact) == (chosen, chosen or 8, exact)


def test_what_was_found_to_be_exact_is_kept_where_there_is_no_time_for_a_faster_form(monkeypatch) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0})
    clock.threads = {8: (1.0, 1.0), 4: (0.5, 0.5)}
    clock.check_s = 0.6 * tuning.SEARCH_S
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, None)
    assert (compilation.exact, compilation.undecided, compilation.num_threads) == (True, False, None)
    assert (model.num_threads, compilation.price) == (8, 1.0)
