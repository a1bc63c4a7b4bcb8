"""The SQLite file of the history: opening it, replacing a damaged one, and keeping other users out."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from pathlib import Path

from platformdirs import user_data_path

from ..core.conversation import CANCELLED
from ..core.user_message import UserMessage

FORMAT = 1
SCHEMA = """
CREATE TABLE chats (
    id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, changed REAL NOT NULL, tip INTEGER
);
CREATE TABLE turns (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat INTEGER NOT NULL REFERENCES chats ON DELETE CASCADE,
    parent INTEGER REFERENCES turns ON DELETE CASCADE,
    finish_reason TEXT,
    text TEXT NOT NULL,
    record TEXT NOT NULL CHECK (json_valid(record))
);
CREATE INDEX turns_by_chat ON turns (chat, parent);
CREATE TABLE presets (name TEXT PRIMARY KEY, record TEXT NOT NULL CHECK (json_valid(record)));
"""

log = logging.getLogger(__name__)


class NewerFormat(Exception):
    """A file that a later release wrote."""


def history_path() -> Path:
    """In the folder where this system keeps a user's data."""
    return user_data_path("outrider", appauthor=False) / "history.sqlite"


def open_or_replace(path: Path) -> tuple[sqlite3.Connection, UserMessage | None]:
    """The database at `path`, which no other user can read, and what was wrong with it, if anything was.

    A damaged file is renamed and a new one created. A file of a newer Outrider is left as it is, and where none can be
    written there is none: conversations are then in memory and lost when the program ends.
    """
    try:
        _make_private(path)
        return _opened(path), None
    except NewerFormat as error:
        message = (
            f"A newer Outrider wrote the history ({error}), so it is left as it is: update Outrider to see its "
            "conversations. New conversations are lost when Outrider ends."
        )
        notice, replacement = UserMessage(message, "HistoryNewer"), ":memory:"
    except (sqlite3.OperationalError, OSError) as error:
        message = f"Conversations cannot be kept in {path} ({error}). They are lost when Outrider ends."
        notice, replacement = UserMessage(message, "HistoryNotKept"), ":memory:"
    except (sqlite3.DatabaseError, ValueError) as error:
        aside = _set_aside(path)
        _make_private(path)
        message = f"The history file was damaged ({error}). It is kept as {aside}, and a new one was created."
        notice, replacement = UserMessage(message, "HistoryDamaged"), str(path)
    log.warning("%s", notice)
    return _opened(replacement), notice


def _opened(path: Path | str) -> sqlite3.Connection:
    """Raises sqlite3.DatabaseError or ValueError for a damaged file, OperationalError for one that cannot be used."""
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        db.create_function("holds", 2, lambda text, search: search in text.casefold(), deterministic=True)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version > FORMAT:
            raise NewerFormat(f"its format is {version}, but this Outrider knows only {FORMAT}")
        if version not in (0, FORMAT):
            raise ValueError(f"its format is {version}, but this Outrider knows only {FORMAT}")
        if (version == 0 and tables) or (version == FORMAT and not tables.issuperset({"chats", "turns", "presets"})):
            raise ValueError("its tables are not those of a history")
        db.execute("PRAGMA ignore_check_constraints = ON")  # a record that is not JSON spoils its turn, not the file
        for (fault,) in db.execute("PRAGMA quick_check(1)"):
            if fault != "ok":
                raise ValueError(fault)
        db.execute("PRAGMA ignore_check_constraints = OFF")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA foreign_keys = ON")
        if version == 0:
            db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
        # Answers that were being written when the last process ended.
        db.execute("UPDATE turns SET finish_reason = ? WHERE finish_reason IS NULL", (CANCELLED,))
    except BaseException:
        db.close()
        raise
    return db


def _set_aside(path: Path) -> Path:
    """Rename a file, and those that SQLite keeps next to it, to unused names."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (f"{path.stem}.damaged-{stamp}{extra}{path.suffix}" for extra in ("", *(f"-{i}" for i in range(1, 1000))))
    aside = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    for ending in ("-wal", "-shm", ""):
        part = path.with_name(path.name + ending)
        if part.exists():
            part.rename(aside.with_name(aside.name + ending))
    return aside


def _make_private(path: Path) -> None:
    """Create the file and its folder if they do not exist, and take away the access of other users."""
    if path.name == ":memory:":
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _close_to_others(path.parent, 0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for ending in ("", "-wal", "-shm"):  # SQLite creates these with the permissions of the first
        _close_to_others(path.with_name(path.name + ending), 0o600)


def _close_to_others(path: Path, mode: int) -> None:
    """Restrict the permissions to `mode`, unless the path is another user's or a shared folder such as /tmp."""
    if os.name == "nt" or not path.exists():
        return  # on Windows, a user's data folder is private anyway
    status = path.stat()
    shared = status.st_mode & stat.S_ISVTX and path.is_dir()
    if status.st_uid == os.getuid() and not shared and stat.S_IMODE(status.st_mode) & ~mode & 0o777:
        path.chmod(mode)
