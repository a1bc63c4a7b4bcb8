"""Tuning: the fastest properties are taken, if they gain enough and keep the promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.pipelines import BrokenPair, LLMPipeline, Pair, tuning

GROUP_SIZE = tuning.GROUP_SIZE


class Clock:
    """Models whose passes take what `takes` says for their group size; `inexact` ones break the promise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: dict[int, float], inexact: int | None = None) -> None:
        self.now = 0.0
        self.takes = takes
        clock = self

        class Model:
            def __init__(self, folder: Path, num_blocks: int, properties: dict[str, int]) -> None:
                self.num_blocks = num_blocks
                self.group_size = properties.get(GROUP_SIZE, 32)

            def forward(self, windows: object) -> None:
                clock.now += clock.takes[self.group_size]

        monkeypatch.setattr(tuning, "PagedModel", Model)
        monkeypatch.setattr(tuning.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(tuning, "is_exact", lambda model, blocks, tokens: model.group_size != inexact)


@pytest.mark.parametrize(
    ("takes", "inexact", "expected"),
    [
        ({32: 1.0, 64: 0.8, 128: 0.7}, None, {GROUP_SIZE: 128}),
        ({32: 1.0, 64: 0.8, 128: 0.7}, 128, {GROUP_SIZE: 64}),
        ({32: 1.0, 64: 0.98, 128: 0.97}, None, {}),
        ({32: 1.0, 64: 1.2, 128: 1.4}, None, {}),
        ({32: 1.0, 64: 1.2, 128: 0.7}, 128, {}),
    ],
)
def test_the_fastest_exact_properties_are_taken_where_they_gain_enough(monkeypatch, takes, inexact, expected) -> None:
    Clock(monkeypatch, takes, inexact)
    assert tuning.fastest_properties(Path()) == expected


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
    from outrider.pipelines import speculation

    seen = []
    real = speculation.PagedModel

    def noting(folder: Path, num_blocks: int, properties: dict | None = None, exact: bool = True):
        if folder.name == "target":
            seen.append((properties or {})[GROUP_SIZE])
        return real(folder, num_blocks, properties, exact)

    monkeypatch.setattr(speculation, "PagedModel", noting)
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
