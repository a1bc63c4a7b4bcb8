"""The pair in the repository is the export of the checkpoints next to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.export.checkpoint import find_checkpoint
from outrider.models.digest import sha256


def test_every_file_of_the_shipped_pair_is_the_one_that_was_checked(embedded_pair: Path) -> None:
    listed = json.loads((embedded_pair / "pair.json").read_text(encoding="utf-8"))["files"]
    shipped = {file.relative_to(embedded_pair).as_posix() for file in embedded_pair.rglob("*") if file.is_file()}
    assert shipped == {*listed, "pair.json"}
    assert {name: sha256(embedded_pair / name) for name in listed} == {
        name: facts["sha256"] for name, facts in listed.items()
    }


@pytest.mark.parametrize("role", ["target", "draft", "head"])
def test_the_shipped_pair_was_made_of_the_shipped_checkpoints(embedded_pair: Path, role: str) -> None:
    made_of = json.loads((embedded_pair / "pair.json").read_text(encoding="utf-8"))["models"][role]
    checkpoint = find_checkpoint(str(embedded_pair.parent / "checkpoints" / role), False, announce=lambda text: None)
    assert made_of["revision"] == checkpoint.revision
    assert made_of["source"] == f"models/pyscout/checkpoints/{role}"
