"""The file of the history: damaged, of a newer release, out of reach, or readable by others."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from outrider.app.chat.core.conversation import Turn
from outrider.app.chat.store.history import Chat, History

from .turns import altered


def damage_head(path: Path) -> None:
    path.write_bytes(b"no database at all" * 300)


def damage_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)


def damage_tables(path: Path) -> None:
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE other (x)")
    db.close()


@pytest.mark.parametrize("damage", [damage_head, damage_middle, damage_tables])
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(tmp_path: Path, damage) -> None:
    path = tmp_path / "history.sqlite"
    history = History(path)
    history.add_turn(history.add_chat("Lost"), None, Turn("x" * 9000))
    history.close()
    damage(path)
    content = path.read_bytes()
    umask = os.umask(0)
    try:
        fresh = History(path)
        fresh.add_chat("Private")
        files = [part for part in tmp_path.iterdir() if "damaged" not in part.name]
        assert {part.name for part in files} == {"history.sqlite", "history.sqlite-wal", "history.sqlite-shm"}
        assert {stat.S_IMODE(part.stat().st_mode) for part in files} == {0o600}
        fresh.delete(fresh.chats()[0].id)
    finally:
        os.umask(umask)
    (aside,) = tmp_path.glob("history.damaged-*.sqlite")
    assert aside.read_bytes() == content
    assert str(aside) in fresh.notice
    assert fresh.notice.kind == "HistoryDamaged"
    assert fresh.chats() == []
    fresh.add_chat("Kept")
    fresh.close()
    again = History(path)
    assert again.notice is None
    assert [chat.title for chat in again.chats()] == ["Kept"]
    again.close()


def test_a_history_of_a_newer_outrider_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    altered(path, "PRAGMA user_version = 99")
    content = path.read_bytes()
    history = History(path)
    assert history.notice.kind == "HistoryNewer"
    assert "A newer Outrider wrote the history" in history.notice
    assert str(tmp_path) not in history.notice
    chat = history.add_chat("For now")
    assert history.chats() == [Chat(chat, "For now")]
    history.close()
    assert path.read_bytes() == content
    assert list(tmp_path.glob("*damaged*")) == []


def test_nobody_else_can_read_the_history(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir(mode=0o755)
    path = folder / "history.sqlite"
    umask = os.umask(0)
    try:
        for _ in range(2):
            history = History(path)
            history.add_chat("Mine")
            names = {"history.sqlite", "history.sqlite-wal", "history.sqlite-shm"}
            assert {part.name for part in folder.iterdir()} == names
            assert {stat.S_IMODE(part.stat().st_mode) for part in folder.iterdir()} == {0o600}
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            history.close()
            path.chmod(0o644)
            folder.chmod(0o755)
        History(tmp_path / "new" / "history.sqlite").close()
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    finally:
        os.umask(umask)


def test_a_folder_that_cannot_be_written_is_said_and_the_page_goes_on_without(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    history = History(tmp_path / "data" / "history.sqlite")
    assert "cannot be kept" in history.notice
    assert history.notice.kind == "HistoryNotKept"
    chat = history.add_chat("For now")
    assert history.chats() == [Chat(chat, "For now")]
