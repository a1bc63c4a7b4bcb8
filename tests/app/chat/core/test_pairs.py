"""Which pairs can be chosen, and why others cannot."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from outrider.app.chat.core.pairs import pairs_in
from outrider.models.errors import NotReadable
from outrider.pipelines.model.pair import name_of


def test_pairs_are_found_by_name_and_broken_ones_have_a_reason(tmp_path: Path, embedded_pair: Path) -> None:
    for name in ("b", "a", "damaged"):
        shutil.copytree(embedded_pair, tmp_path / name, copy_function=os.link)
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "file").write_text("no pair")
    (tmp_path / "damaged" / "target" / "config.json").unlink()
    (tmp_path / "damaged" / "target" / "config.json").write_text("{")
    choices = pairs_in(tmp_path, tmp_path / "b", embedded_pair)
    assert [choice.name for choice in choices] == ["pyscout", "b", "a", "damaged", "empty"]
    reasons = {choice.name: choice.reason for choice in choices}
    assert reasons["pyscout"] is reasons["a"] is reasons["b"] is None
    assert "config.json cannot be read" in str(reasons["damaged"])
    assert "pair.json" in str(reasons["empty"])


def test_a_folder_that_is_not_there_offers_the_embedded_pair(tmp_path: Path) -> None:
    assert [choice.name for choice in pairs_in(tmp_path / "none")] == ["pyscout"]


def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("no folder")
    with pytest.raises(NotReadable, match="cannot be read"):
        pairs_in(tmp_path / "pairs")


def test_a_pair_is_called_by_its_folder(tmp_path: Path) -> None:
    assert name_of(tmp_path / "mine") == "mine"
    assert name_of(tmp_path / "mine" / "pair") == "mine"
