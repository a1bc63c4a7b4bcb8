"""`outrider models list` of a folder in which not everything is a complete pair."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.hub import Hub

from .machine import NAME, Machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the data folder is the user's own")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One that never asks its hub."""
    return Machine(Hub({}, endpoint="http://127.0.0.1:9"), tmp_path)


def test_a_removal_that_was_interrupted_is_listed_until_it_is_repeated(machine: Machine) -> None:
    left = machine.pairs / ".mine.outrider-removed"
    left.mkdir(parents=True)
    (left / "weights").write_bytes(bytes(5_000_000))
    assert "mine was not removed to the end, 5 MB are left" in " ".join(machine.run("models", "list").stdout.split())
    assert json.loads(machine.run("models", "list", "--json").stdout)["half_removed_bytes"] == {"mine": 5_000_000}
    assert "Removed mine (5 MB)" in machine.run("models", "remove", "mine", "--yes").stdout
    assert list(machine.pairs.iterdir()) == []


def test_an_unfinished_pair_that_the_catalogue_does_not_have_is_listed_until_it_is_removed(machine: Machine) -> None:
    begun = machine.pairs / ".gone.outrider-new"
    begun.mkdir(parents=True)
    (begun / "weights").write_bytes(bytes(5_000_000))
    table = " ".join(machine.run("models", "list").stdout.split())
    assert "gone is unfinished, 5 MB" in table
    assert "`outrider models remove gone`" in table
    assert machine.listed("gone") == {"name": "gone", "pulled": None, "unfinished_bytes": 5_000_000}
    assert "Removed gone (5 MB)" in machine.run("models", "remove", "gone", "--yes").stdout
    assert "gone" not in machine.run("models", "list").stdout


def test_a_long_name_leaves_room_for_the_other_columns_of_the_list(machine: Machine) -> None:
    (machine.pairs / ("a-name-of-a-pair" * 5)).mkdir(parents=True)
    machine.settings = {"COLUMNS": "80"}
    table = machine.run("models", "list").stdout
    assert "~5.48 GB" in table
    assert "cannot be used" in table.split("a-name-of-a-pair cannot be used")[0]


def test_a_broken_pair_of_the_catalogue_is_listed_with_how_to_pull_it_again(machine: Machine) -> None:
    for name in (NAME, "mine"):
        (machine.pairs / name).mkdir(parents=True)
    table = " ".join(machine.run("models", "list").stdout.split())
    assert f"Remove it with `outrider models remove {NAME}` to pull it again." in table
    assert "outrider models remove mine" not in table
