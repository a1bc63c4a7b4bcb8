"""Tuning: the fastest properties are taken, if they gain enough and keep the promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.pipelines import BrokenPair, LLMPipeline, Pair, tuning
from outrider.pipelines.paged_model import PRECISION

GROUP_SIZE = tuning.GROUP_SIZE


class Clock:
    """Models whose passes take what `takes` says for their group size or precision; `inexact` ones break the promise.

    loaded: the precisions in which models were loaded.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: dict[object, float], inexact: object = None) -> None:
        self.now = 0.0
        self.takes = takes
        self.loaded: list[str] = []
        clock = self

        class Model:
            def __init__(self, folder: Path, num_blocks: int, properties: dict[str, object], exact: bool) -> None:
                self.num_blocks = num_blocks
                self.precision = properties.get(PRECISION, "f32")
                self.traits = {properties.get(GROUP_SIZE, 32), self.precision}
                clock.loaded.append(self.precision)

            def forward(self, windows: object) -> None:
                clock.now += next(took for trait, took in clock.takes.items() if trait in self.traits)

        monkeypatch.setattr(tuning, "PagedModel", Model)
        monkeypatch.setattr(tuning, "fastest_precision", lambda: "bf16")
        monkeypatch.setattr(tuning.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(tuning, "is_exact", lambda model, blocks, tokens: inexact not in model.traits)


@pytest.mark.parametrize(
    ("takes", "inexact", "expected"),
    [
        ({32: 1.0, 64: 0.8, 128: 0.7}, None, {GROUP_SIZE: 128}),
        ({32: 1.0, 64: 0.8, 128: 0.7}, 128, {GROUP_SIZE: 64}),
        ({32: 1.0, 64: 0.98, 128: 0.97}, None, {}),
        ({32: 1.0, 64: 1.2, 128: 1.4}, None, {}),
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
    assert clock.loaded == ["bf16", "f32", "f32", "f32"]


@pytest.mark.parametrize(("inexact", "expected"), [(None, "bf16"), ("bf16", "f32")])
def test_where_exactness_counts_the_processors_own_precision_is_taken_if_it_is_exact(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, inexact: str | None, expected: str
) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0, "bf16": 1.0}, inexact)
    for _ in range(2):
        assert tuning.load_fastest(Path(), 4, {}, True, 128, tmp_path / "kept").precision == expected
    assert clock.loaded == (["bf16", "bf16"] if expected == "bf16" else ["bf16", "f32", "f32"])


@pytest.mark.parametrize("bf16_takes", [0.6, 1.5])
def test_where_exactness_does_not_count_the_faster_precision_is_taken_and_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bf16_takes: float
) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0, "bf16": bf16_takes}, "bf16")
    expected = "bf16" if bf16_takes < 1 else "f32"
    assert tuning.load_fastest(Path(), 4, {}, False, 128, tmp_path / "kept").precision == expected
    clock.loaded.clear()
    assert tuning.load_fastest(Path(), 4, {}, False, 128, tmp_path / "kept").precision == expected
    assert clock.loaded == [expected]


def test_a_precision_that_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch, {"f32": 1.0, "bf16": 2.0}, "bf16")
    assert tuning.load_fastest(Path(), 4, {PRECISION: "bf16"}, True, 128, tmp_path / "kept").precision == "bf16"
    assert clock.loaded == ["bf16"]


@pytest.mark.parametrize("damaged", [b"", b"f16", b"\xff"])
def test_a_damaged_memory_of_the_precision_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damaged: bytes
) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(damaged)
    clock = Clock(monkeypatch, {"f32": 1.0, "bf16": 1.0}, "bf16")
    tuning.load_fastest(Path(), 4, {}, True, 128, kept)
    assert clock.loaded == ["bf16", "f32"]
    assert kept.read_text() == "f32"


def test_where_nothing_can_be_remembered_a_warning_tells_and_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Clock(monkeypatch, {"f32": 1.0, "bf16": 1.0}, "bf16")
    (tmp_path / "file").touch()
    assert tuning.load_fastest(Path(), 4, {}, True, 128, tmp_path / "file" / "kept").precision == "f32"
    assert "cannot be kept" in caplog.text


def test_the_embedded_target_can_be_tuned(embedded_pair: Path) -> None:
    assert tuning.fastest_properties(embedded_pair / "target") in list(map(dict, tuning.CANDIDATES))


@pytest.fixture
def tuned(embedded_pair: Path, tmp_path: Path) -> Path:
    """The embedded pair with properties in its pair.json."""
    for folder in ("target", "draft"):
        (tmp_path / folder).symlink_to(embedded_pair / folder)
    metadata = json.loads((embedded_pair / "pair.json").read_text())
    metadata["models"]["target"]["properties"] = {GROUP_SIZE: 64}
    (tmp_path / "pair.json").write_text(json.dumps(metadata))
    return tmp_path


def test_a_pair_runs_with_its_properties_unless_others_are_asked_for(tuned: Path, monkeypatch) -> None:
    seen = []
    real = tuning.PagedModel

    def noting(folder: Path, num_blocks: int, properties: dict | None = None, exact: bool = True):
        if folder.name == "target":
            seen.append((properties or {})[GROUP_SIZE])
        return real(folder, num_blocks, properties, exact)

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
