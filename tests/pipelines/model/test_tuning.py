"""Tuning: the fastest properties are taken, if they gain enough and keep the promise."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from outrider.pipelines import BrokenPair, LLMPipeline, Pair
from outrider.pipelines.model import contest, price, tuning
from outrider.pipelines.model.processor import PRECISION
from outrider.pipelines.model.target import Rows

from .clock import Clock

GROUP_SIZE = tuning.GROUP_SIZE


@pytest.mark.parametrize(
    ("takes", "inexact", "expected"),
    [
        ({32: 1.0, 64: 0.8, 128: 0.7}, "none", {GROUP_SIZE: 128}),
        ({32: 1.0, 64: 0.8, 128: 0.7}, 128, {GROUP_SIZE: 64}),
        ({32: 1.0, 64: 0.98, 128: 0.97}, "none", {}),
        ({32: 1.0, 64: 1.2, 128: 1.4}, "none", {}),
        ({32: 1.0, 64: 1.2, 128: 0.7}, 128, {}),
        ({"bf16": 1.0, 32: 1.0, 64: 0.8, 128: 0.7}, "bf16", {GROUP_SIZE: 128}),
    ],
)
def test_the_fastest_exact_properties_are_taken_where_they_gain_enough(monkeypatch, takes, inexact, expected) -> None:
    Clock(monkeypatch, takes, inexact)
    assert tuning.fastest_properties(Path()) == expected


def test_a_precision_that_breaks_the_promise_is_tried_once_while_properties_are_compared(monkeypatch) -> None:
    clock = Clock(monkeypatch, {32: 1.0, 64: 0.8, 128: 0.7}, "bf16")
    tuning.fastest_properties(Path())
    assert [precision for precision, _ in clock.loaded] == ["bf16", "f32", "f32", "f32"]


@pytest.mark.parametrize(("inexact", "expected"), [("none", "bf16"), ("bf16", "f32")])
def test_where_exactness_counts_the_processors_own_precision_is_taken_if_it_is_exact(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inexact: str, expected: str
) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0, "bf16": 1.0}, inexact)
    for _ in range(2):
        model, compilation = tuning.load_target(Path(), 4, {}, True, path=tmp_path / "kept")
        assert (model.precision, model.num_blocks, compilation.exact) == (expected, 4, True)
    precisions = [precision for precision, _ in clock.loaded]
    assert precisions == (["bf16", "bf16"] if expected == "bf16" else ["bf16", "f32", "f32"])


@pytest.mark.parametrize(
    ("fewest", "longest", "rows"),
    [
        ({"bf16": 5, None: 5}, 2048, 1),
        ({"bf16": 5, None: 2}, None, 2),
        ({"bf16": 5, None: 5, 2048: 5}, 4096, 1),
        ({"bf16": 6, None: 8, 2048: 4, 4096: 7}, 2048, 4),
    ],
)
def test_long_products_are_summed_in_parts_where_passes_need_fewer_rows_then(
    monkeypatch, tmp_path, fewest, longest, rows
) -> None:
    Clock(monkeypatch, {"f32": 1.0, "bf16": 1.0}, fewest=fewest)
    for _ in range(2):
        model, compilation = tuning.load_target(Path(), 4, {}, True, path=tmp_path / "kept")
        assert (compilation.precision, compilation.longest, compilation.rows.fewest) == ("f32", longest, rows)
        assert model.rows == compilation.rows


@pytest.mark.parametrize(
    ("filled", "exact", "expected"),
    [(1.09, None, True), (1.2, None, False), (2.0, None, False), (1.2, True, True), (1.0, False, False)],
)
def test_exactness_is_kept_where_it_costs_little_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, filled: float, exact: bool | None, expected: bool
) -> None:
    Clock(monkeypatch, {"f32": 1.0, "bf16": 1.5}, fewest={"bf16": 2, "f32": 2}, filled=filled)
    _, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact, path=tmp_path / "kept")
    assert compilation.exact == expected
    assert compilation.price == (None if exact is False else pytest.approx(filled))


@pytest.mark.parametrize(
    ("pass_s", "filled", "expected"),
    [
        *((0.002, filled, expected) for filled, expected in ((1.0, True), (1.05, True), (1.09, True), (1.25, False))),
        *((0.06, filled, expected) for filled, expected in ((1.0, True), (1.4, False), (1.6, False))),
    ],
)
def test_noise_does_not_decide_about_exactness(monkeypatch, pass_s: float, filled: float, expected: bool) -> None:
    """Times that scatter by 15%, are now and then half as long, and three times as long in bursts, which are longer
    than a short pass."""
    monkeypatch.setattr(price, "PRICED_S", 1.0)
    monkeypatch.setattr(price, "TURN_S", 0.01)
    for seed in range(40):
        clock, rng = Clock(monkeypatch, {"f32": pass_s}, fewest={"f32": 2}, filled=filled), random.Random(seed)
        clock.noise = lambda clock=clock, rng=rng: (
            rng.lognormvariate(0, 0.15)
            * (0.5 if rng.random() < 0.03 else 1)
            * (3 if (clock.now % 0.3 < 0.1 if pass_s < 0.01 else rng.random() < 0.05) else 1)
        )
        _, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, None)
        assert compilation.exact == expected, seed
        if pass_s < 0.01:  # otherwise it is soon clear, from few passes
            assert compilation.price == pytest.approx(filled, abs=0.15), seed


def test_what_exactness_came_to_does_not_change_from_run_to_run(monkeypatch, tmp_path: Path) -> None:
    """Though the machine seems another today."""
    chosen = []
    for filled in (1.05, 1.5, 1.05):
        Clock(monkeypatch, {"f32": 1.0}, fewest={"f32": 2}, filled=filled)
        chosen.append(tuning.load_target(Path(), 4, {PRECISION: "f32"}, None, path=tmp_path / "kept")[1])
    assert chosen[0].exact
    assert chosen[1:] == chosen[:1] * 2


@pytest.mark.parametrize(
    ("filled", "exact", "is_quiet", "is_told"),
    [(1.5, None, False, True), (1.5, None, True, False), (1.5, False, False, False), (1.05, None, False, False)],
)
def test_a_price_that_other_programs_may_have_made_is_told_with_what_to_do(
    monkeypatch, caplog, filled: float, exact: bool | None, is_quiet: bool, is_told: bool
) -> None:
    Clock(monkeypatch, {"f32": 1.0}, fewest={"f32": 2}, filled=filled)
    monkeypatch.setattr(tuning, "is_quiet", lambda: is_quiet)
    tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact)
    assert ("`outrider doctor --again`" in caplog.text) == is_told


@pytest.mark.parametrize("exact", [None, True, False])
@pytest.mark.parametrize(("filled", "fewest"), [(0.8, 2), (0.98, 1), (1.2, 1)])
def test_a_token_gets_a_second_row_where_that_makes_its_pass_faster(monkeypatch, exact, filled, fewest) -> None:
    Clock(monkeypatch, {"f32": 1.0}, filled=filled)
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact)
    assert model.rows == compilation.rows == Rows(fewest, fewest_projected=fewest)
    assert compilation.price == (None if exact is False else 1.0)


@pytest.mark.parametrize("exact", [None, True])
def test_the_search_for_exactness_ends_in_time_unless_exactness_is_asked_for(monkeypatch, tmp_path, exact) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0})
    clock.check_s = tuning.SEARCH_S + 1
    _, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact, path=tmp_path / "kept")
    assert (compilation.exact, compilation.undecided) == ((True, False) if exact else (False, True))
    clock.check_s = 0.0  # what was found is kept all the same
    assert tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact, path=tmp_path / "kept")[1] == compilation


@pytest.mark.parametrize("bf16_takes", [0.6, 1.5])
def test_where_exactness_does_not_count_the_faster_precision_is_taken_and_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bf16_takes: float
) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0, "bf16": bf16_takes}, "bf16")
    expected = "bf16" if bf16_takes < 1 else "f32"
    assert tuning.load_target(Path(), 4, {}, False, path=tmp_path / "kept")[0].precision == expected
    clock.loaded.clear()
    model, compilation = tuning.load_target(Path(), 4, {}, False, path=tmp_path / "kept")
    assert (model.precision, compilation.exact) == (expected, False)
    assert clock.loaded == [(expected, None)]


@pytest.mark.parametrize(
    ("alone", "together", "longest"), [(1.0, 0.8, 4096), (1.0, 0.98, None), (1.2, 0.5, None), (0.9, 0.9, 4096)]
)
def test_where_exactness_does_not_count_long_products_are_summed_in_parts_if_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, alone: float, together: float, longest: int | None
) -> None:
    """For several rows together, and no slower for a row alone."""
    clock = Clock(monkeypatch, {4096: 1.0, "f32": 1.0})
    clock.relative = {4096: (alone, together)}
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, False)
    assert compilation == tuning.Compilation(False, "f32", longest)
    assert (model.precision, model.num_blocks, model.traits[-1]) == ("f32", 4, longest)


@pytest.mark.parametrize(("alone", "together", "longest"), [(1.0, 0.85, 2048), (1.2, 0.8, None), (1.0, 1.0, None)])
@pytest.mark.parametrize("exact", [True, False])
def test_a_machine_that_is_busy_for_seconds_does_not_decide_about_a_model_that_fits_twice(
    monkeypatch: pytest.MonkeyPatch, alone: float, together: float, longest: int | None, exact: bool
) -> None:
    """It gets twice as slow, and twice as fast again, at random moments of the comparison."""
    monkeypatch.setattr(contest, "TURNS_S", 0.3)
    expected = longest if not exact or longest is None else 4096
    for seed in range(12):
        clock, rng = Clock(monkeypatch, {"f32": 0.01}, fewest={None: 9, 2048: 2, 4096: 2}), random.Random(seed)
        clock.relative = {4096: (alone, together)} if exact else dict.fromkeys((2048, 4096), (alone, together))
        clock.weight_bytes = contest.BESIDE_BYTES
        changes = sorted(rng.uniform(0, 10) for _ in range(6))
        clock.noise = lambda clock=clock, changes=changes, rng=rng: (
            rng.lognormvariate(0, 0.05) * (2 if sum(clock.now > change for change in changes) % 2 else 1)
        )
        model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, exact)
        assert compilation.longest == (expected or (2048 if exact else None)), seed
        assert (model.traits[-1], model.num_blocks) == (compilation.longest, 4)


@pytest.mark.parametrize("weight_bytes", [contest.BESIDE_BYTES, contest.BESIDE_BYTES + 1])
def test_the_time_that_weights_take_to_be_packed_does_not_count(monkeypatch, weight_bytes: int) -> None:
    """The first form has packed its weights by the time that the last one is tried."""
    monkeypatch.setattr(contest, "TURNS_S", 0.5)
    clock = Clock(monkeypatch, {"f32": 0.1})
    clock.packing_s, clock.weight_bytes = 5.0, weight_bytes
    clock.relative, clock.threads = {4096: (1.0, 0.9)}, {8: (1.0, 1.0), 4: (0.9, 0.9)}
    _, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, False)
    assert (compilation.longest, compilation.num_threads) == (4096, 4)


@pytest.mark.parametrize("pass_s", [0.001, 0.5])
def test_forms_of_a_slow_model_are_compared_by_three_passes_of_each_size(monkeypatch, pass_s: float) -> None:
    """Since somebody waits for its first answer. The first of them does not count."""
    monkeypatch.setattr(contest, "TURNS_S", 0.5)
    clock = Clock(monkeypatch, {"f32": pass_s})
    tuning.load_target(Path(), 4, {PRECISION: "f32"}, False)
    num_passes = clock.now / pass_s / len(contest.ROWS) / (1 + len(tuning.LONGEST))
    assert num_passes == pytest.approx(3, abs=1.5) if pass_s > 0.1 else num_passes > 2 * contest.TURN


@pytest.mark.parametrize(
    ("together", "expected"),
    [({2048: 0.8, 4096: 0.7}, 2048), ({2048: 0.98, 4096: 0.7}, 4096), ({2048: 0.98, 4096: 0.98}, None)],
)
def test_where_exactness_does_not_count_longer_parts_are_taken_if_shorter_ones_gain_too_little(
    monkeypatch: pytest.MonkeyPatch, together: dict[int, float], expected: int | None
) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0})
    clock.relative = {longest: (1.0, share) for longest, share in together.items()}
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, False)
    assert (compilation.longest, model.traits[-1], model.num_blocks) == (expected, expected, 4)


def test_where_exactness_counts_longer_parts_are_taken_if_shorter_ones_are_not_exact(monkeypatch) -> None:
    Clock(monkeypatch, {"f32": 1.0, "bf16": 1.0}, 2048, fewest={"bf16": 5, None: 5})
    model, compilation = tuning.load_target(Path(), 4, {}, True)
    assert (compilation.longest, model.traits[-1], model.num_blocks, compilation.price) == (4096, 4096, 4, 1.0)


@pytest.mark.parametrize(
    ("alone", "together", "inexact", "fewest", "expected"),
    [
        (1.0, 0.8, "none", 2, 4096),
        (1.0, 0.98, "none", 2, 2048),
        (1.0, 1.1, "none", 2, 2048),
        (1.2, 0.5, "none", 2, 2048),  # slower where nothing is drafted
        (1.0, 0.8, 4096, 2, 2048),
        (1.0, 0.8, "none", 5, 2048),  # faster, but with more rows
        (1.0, 0.8, "none", 1, 4096),
    ],
)
def test_where_exactness_counts_longer_parts_are_taken_if_they_are_faster_and_as_exact(
    monkeypatch, tmp_path, alone, together, inexact, fewest, expected
) -> None:
    clock = Clock(
        monkeypatch, {"f32": 1.0}, inexact, fewest={None: 9, 2048: 2, 4096: fewest}, filled={None: 1.0, 4096: 1.03}
    )
    clock.relative = {4096: (alone, together)}
    model, compilation = tuning.load_target(Path(), 4, {PRECISION: "f32"}, True, path=tmp_path / "kept")
    assert (compilation.longest, model.traits[-1], model.num_blocks) == (expected, expected, 4)
    assert compilation.rows == model.rows == Rows(min(fewest, 2) if expected == 4096 else 2)
    assert compilation.price == pytest.approx(1.03 if expected == 4096 and fewest > 1 else 1.0)
    loads = [("f32", None), ("f32", 2048), ("f32", 4096)]
    assert clock.loaded == (loads if expected == 4096 else [*loads, ("f32", 2048)])


@pytest.mark.parametrize("fewest", [{}, {"bf16": 5}])
def test_nothing_is_compared_by_time_where_a_model_is_exact_with_whole_products(monkeypatch, fewest) -> None:
    """A large model takes seconds to load."""
    clock = Clock(monkeypatch, {4096: 0.1, 2048: 0.1, "f32": 1.0, "bf16": 1.0}, fewest=fewest)
    assert tuning.load_target(Path(), 4, {}, True)[1].longest is None
    assert clock.loaded == [("bf16", None), *([("f32", None)] if fewest else [])]


def test_a_precision_that_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0, "bf16": 2.0}, "bf16")
    for exact in (True, False):
        model, compilation = tuning.load_target(Path(), 4, {PRECISION: "bf16"}, exact)
        assert (model.precision, compilation.exact) == ("bf16", False)
    assert {precision for precision, _ in clock.loaded} == {"bf16"}


@pytest.mark.parametrize("damaged", [b"", b"f16", b"\xff", b'{"exact": true}', b'{"exact": 3, "precision": "f32"}'])
def test_a_damaged_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damaged: bytes) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(damaged)
    clock = Clock(monkeypatch, {"f32": 1.0, "bf16": 1.0}, "bf16")
    found = tuning.load_target(Path(), 4, {}, True, path=kept)[1]
    assert [precision for precision, _ in clock.loaded] == ["bf16", "f32"]
    assert tuning.load_target(Path(), 4, {}, True, path=kept)[1] == found
    assert len(clock.loaded) == 3


def test_where_nothing_can_be_remembered_a_warning_tells_and_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Clock(monkeypatch, {"f32": 1.0, "bf16": 1.0}, "bf16")
    (tmp_path / "file").touch()
    assert tuning.load_target(Path(), 4, {}, True, path=tmp_path / "file" / "kept")[0].precision == "f32"
    assert "cannot be kept" in caplog.text


@pytest.mark.slow
def test_the_embedded_target_can_be_tuned(embedded_pair: Path) -> None:
    assert tuning.fastest_properties(embedded_pair / "target") in list(map(dict, tuning.CANDIDATES))


@pytest.fixture
def tuned(embedded_pair: Path, tmp_path: Path) -> Path:
    """The embedded pair with properties in its pair.json."""
    for folder in ("target", "draft", "head"):
        (tmp_path / folder).symlink_to(embedded_pair / folder)
    metadata = json.loads((embedded_pair / "pair.json").read_text())
    metadata["models"]["target"]["properties"] = {GROUP_SIZE: 64}
    (tmp_path / "pair.json").write_text(json.dumps(metadata))
    return tmp_path


@pytest.mark.slow
def test_a_pair_runs_with_its_properties_unless_others_are_asked_for(tuned: Path, monkeypatch) -> None:
    seen = []
    real = tuning.PagedModel

    def noting(folder: Path, num_blocks: int, properties: dict, *how: object):
        if folder.name == "target":
            seen.append(properties[GROUP_SIZE])
        return real(folder, num_blocks, properties, *how)

    monkeypatch.setattr(tuning, "PagedModel", noting)
    LLMPipeline(tuned)
    assert set(seen) == {64}, "in whatever precision it is tried"
    seen.clear()
    LLMPipeline(tuned, DYNAMIC_QUANTIZATION_GROUP_SIZE=32)
    assert set(seen) == {32}


@pytest.mark.parametrize("properties", [7, ["x"], {"x": [1]}])
def test_properties_that_cannot_be_are_a_broken_pair(tuned: Path, properties: object) -> None:
    path = tuned / "pair.json"
    metadata = json.loads(path.read_text())
    metadata["models"]["target"]["properties"] = properties
    path.write_text(json.dumps(metadata))
    with pytest.raises(BrokenPair, match="properties"):
        _ = Pair.open(tuned).properties
