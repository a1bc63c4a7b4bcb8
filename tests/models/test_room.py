from __future__ import annotations

import errno
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from outrider.models.errors import NoRoom
from outrider.models.room import SPARE, blaming_full_disk, in_words, require_room

Usage = namedtuple("Usage", "total used free")


def leave(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, free))


def test_too_little_room_is_refused_with_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(5_000_000_000, monkeypatch)
    with pytest.raises(NoRoom, match=r"needs about 15 GB in .*, but 5 GB are free"):
        require_room(tmp_path / "not" / "yet", 15_000_000_000 - SPARE, "The export")


def test_enough_room_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(1000 + SPARE, monkeypatch)
    require_room(tmp_path, 1000, "The export")


def test_an_error_on_a_full_disk_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(4096, monkeypatch)
    with pytest.raises(NoRoom, match="is full"), blaming_full_disk(tmp_path):
        raise RuntimeError("basic_ios::clear: iostream error")


def test_a_writer_that_says_the_disk_is_full_is_believed(tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match="is full"), blaming_full_disk(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="something else"), blaming_full_disk(tmp_path):
        raise RuntimeError("something else")


@pytest.mark.parametrize(("size", "words"), [(999, "999 bytes"), (1_536_000, "1.54 MB"), (15e9, "15 GB")])
def test_sizes_are_written_for_people(size: float, words: str) -> None:
    assert in_words(size) == words


@pytest.mark.parametrize(("size", "words"), [(999_499, "999 kB"), (999_500, "1 MB"), (1.5e12, "1.5 TB")])
def test_no_size_has_an_exponent(size: float, words: str) -> None:
    assert in_words(size) == words
