"""How a large target is compiled is found out with its first layers, and verified with the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.pipelines.model import tuning
from outrider.pipelines.model.processor import PRECISION

from .clock import Clock, Large


@pytest.mark.parametrize(
    ("exact", "filled", "inexact", "expected"),
    [
        (True, 1.0, None, True),
        (None, 1.0, None, True),
        (None, 2.0, None, False),
        (True, 2.0, None, True),
        (True, 1.0, "all", False),
        (False, 1.0, None, False),
    ],
)
def test_of_a_large_target_the_first_layers_are_tried_and_the_whole_is_loaded_once(
    monkeypatch, tmp_path: Path, exact, filled, inexact, expected
) -> None:
    clock = Clock(
        monkeypatch, {"f32": 0.01}, "f32" if inexact == "all" else "none", {None: 9, 2048: 2, 4096: 2}, filled
    )
    clock.relative, clock.threads = {4096: (1.0, 0.8)}, {8: (1.0, 1.0), 4: (0.5, 0.5)}
    large = Large(monkeypatch, clock)
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact, path=tmp_path / "kept")
    assert (compilation.exact, compilation.longest, compilation.num_threads) == (expected, 4096, 4)
    assert (model.is_first, model.num_blocks, model.num_threads, model.traits[-1]) == (False, 4, 4, 4096)
    assert [each for each in large.loaded if not each[0]] == [(False, 4, 4096)]
    assert len(large.loaded) > 3
    assert (compilation.price is None) == (exact is False or inexact == "all")
    large.loaded.clear()
    assert tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact, path=tmp_path / "kept")[1] == compilation
    assert large.loaded == [(False, 4, 4096)]


def test_a_large_target_is_not_promised_to_be_exact_where_only_its_first_layers_are(monkeypatch) -> None:
    clock = Clock(monkeypatch, {"f32": 0.01}, fewest={None: 9, 2048: 2, 4096: 2})
    large = Large(monkeypatch, clock, inexact_whole=2048)
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, True)
    assert (compilation.exact, compilation.longest, model.traits[-1]) == (True, 4096, 4096)
    assert next(parts for is_first, _, parts in large.loaded if not is_first) == 2048
    Large(monkeypatch, Clock(monkeypatch, {"f32": 0.01}), inexact_whole="f32")
    assert not tuning.load_target(Path(), 4, {PRECISION: "f32"}, True)[1].exact


def test_a_large_target_that_cannot_be_verified_in_time_is_not_compared_as_a_whole(monkeypatch) -> None:
    """It is loaded to be verified, and once more as it runs then."""
    clock = Clock(monkeypatch, {"f32": 0.01})
    large = Large(monkeypatch, clock)
    clock.relative = {4096: (1.0, 0.8)}

    def out_of_time(model, *given: object) -> bool:
        raise TimeoutError

    monkeypatch.setattr(tuning, "is_exact", out_of_time)
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, None)
    assert (compilation.exact, compilation.undecided, compilation.longest) == (False, True, 4096)
    assert [parts for is_first, _, parts in large.loaded if not is_first] == [None, 4096]
    assert (model.is_first, model.traits[-1], model.num_blocks) == (False, 4096, 4)


@pytest.mark.parametrize(
    ("takes", "inexact", "expected"),
    [
        ({32: 0.1, 64: 0.08, 128: 0.07}, "none", {tuning.GROUP_SIZE: 128}),
        ({32: 0.1, 64: 0.08, 128: 0.07}, 128, {tuning.GROUP_SIZE: 64}),
    ],
)
def test_properties_of_a_large_target_are_compared_with_its_first_layers(monkeypatch, takes, inexact, expected) -> None:
    clock = Clock(monkeypatch, takes, inexact)
    large = Large(monkeypatch, clock)
    assert tuning.fastest_properties(Path()) == expected
    assert sum(not is_first for is_first, *_ in large.loaded) == 1
    assert sum(is_first for is_first, *_ in large.loaded) > 3
