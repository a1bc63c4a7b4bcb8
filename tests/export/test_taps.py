"""Which layers of its target a head may read, by its configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.export.checkpoint import Checkpoint
from outrider.export.heads.taps import tap_candidates
from outrider.pipelines.errors import UnsupportedModel

LAYERS = 12
IDS = "eagle_aux_hidden_state_layer_ids"


def checkpoint(folder: Path, architecture: str, **config: Any) -> Checkpoint:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return Checkpoint(folder.name, folder, "", architecture, 0, 0)


def candidates(folder: Path, layers: int = LAYERS, **config: Any) -> list[tuple[int, ...]]:
    head = checkpoint(folder / "head", "LlamaForCausalLMEagle3", **config)
    return tap_candidates(head, checkpoint(folder / "target", "LlamaForCausalLM", num_hidden_layers=layers))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [(1, 5, 8), (2, 6, 9)]),
        ({"eagle_config": {}}, [(1, 5, 8), (2, 6, 9)]),
        ({"eagle_config": {IDS: []}}, [(1, 5, 8), (2, 6, 9)]),
        ({"eagle_config": {IDS: [1, 4, 11]}}, [(0, 3, 10), (1, 4, 11)]),
        ({IDS: [1, 4, 11]}, [(0, 3, 10), (1, 4, 11)]),
        ({IDS: [0, 4, 11]}, [(0, 4, 11)]),  # where they are inputs, 0 is the embedding, which cannot be read
        ({IDS: [2, 6, LAYERS]}, [(1, 5, 11)]),
        ({"eagle_taps": [0, 5, LAYERS], IDS: [1, 4, 11]}, [(0, 5, LAYERS)]),
    ],
    ids=str,
)
def test_layers_are_those_whose_inputs_or_outputs_are_named_or_usual(
    tmp_path: Path, config: dict[str, Any], expected: list[tuple[int, ...]]
) -> None:
    assert candidates(tmp_path, **config) == expected


@pytest.mark.parametrize(
    ("layers", "config", "message"),
    [
        (4, {}, r"the usual ones, \[2, 2, 1\], do not exist in a model of 4 layers: .* copy .*, add \"eagle_taps\""),
        (4, {IDS: [1, 3, 9]}, r"reads layers \[1, 3, 9\] of its target, which do not exist in a model of 4 layers"),
        (LAYERS, {"eagle_taps": [0, 5, 13]}, "wants hidden states of layer 13, and target has 12"),
        (LAYERS, {IDS: [1, 4, 7, 11]}, r"reads 4 layers of its target, \[1, 4, 7, 11\], and those that can be .* 3"),
    ],
)
def test_layers_that_cannot_be_read_are_refused(
    tmp_path: Path, layers: int, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        candidates(tmp_path, layers, **config)
