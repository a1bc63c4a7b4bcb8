"""The conversations and presets of a user, in one SQLite file."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.pipelines import OutriderError

from ..core.conversation import CANCELLED, Turn
from ..core.settings import Settings
from ..core.values import sound, storable
from .database import open_or_replace
from .record import BadRecord, settings_of, settings_record, turn_of, turn_record

TITLE_LENGTH = 60  # characters of a title that is taken from a prompt
LONGEST_TITLE = 200
log = logging.getLogger(__name__)


class NoSuchChat(OutriderError):
    """A conversation, or a turn of one, that has been deleted in the meantime."""


class NotKept(OutriderError):
    """The file could not be written, for example because the disk is full."""


@dataclass(frozen=True, slots=True)
class Chat:
    """An entry of the list of conversations."""

    id: int
    title: str


@dataclass(frozen=True, slots=True)
class Node:
    """A turn in the tree of its conversation. `siblings` are the ids of its parent's children, including its own.

    unreadable: whether the record of the turn could not be read, so that `turn` has only its text, in the prompt.
    """

    id: int
    parent: int | None
    turn: Turn
    siblings: tuple[int, ...] = ()
    unreadable: bool = False


def title_of(prompt: str) -> str:
    """The first line of a prompt, with the next one if it ends in a colon, cut to TITLE_LENGTH; fences do not count."""
    stripped = (line.strip() for line in prompt.splitlines())
    lines = [line for line in stripped if line and not line.startswith("```")] or ["..."]
    line = " ".join(lines[:2]) if lines[0].endswith((":", "：")) else lines[0]
    return line if len(line) <= TITLE_LENGTH else f"{line[: TITLE_LENGTH - 1]}…"


class History:
    """Conversations as trees of turns: an edited or retried prompt is a sibling of the original. Thread-safe.

    All that changes something raises NotKept where the file cannot be written, and then changes nothing.

    A conversation's tip is the turn that it was last shown up to. `notice` says what was wrong with the file, if
    anything was: see `open_or_replace`.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._db, self.notice = open_or_replace(path)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def chats(self, search: str = "") -> list[Chat]:
        """The conversations whose title, prompts, files or answers contain `search`, ignoring case; latest first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT id, title FROM chats WHERE holds(title, :search) OR EXISTS "
                "(SELECT 1 FROM turns WHERE chat = chats.id AND holds(text, :search)) ORDER BY changed DESC, id DESC",
                {"search": search.casefold()},
            ).fetchall()
        return [Chat(*row) for row in rows]

    def add_chat(self, title: str) -> int:
        with self._writing():
            return self._inserted("INSERT INTO chats (title, changed) VALUES (?, ?)", _shown(title), time.time())

    def title(self, chat: int) -> str:
        """Raises NoSuchChat."""
        with self._lock:
            row = self._db.execute("SELECT title FROM chats WHERE id = ?", (chat,)).fetchone()
        if row is None:
            raise NoSuchChat("This conversation has been deleted: start a new one.")
        return str(row[0])

    def has(self, chat: int | None) -> bool:
        with self._lock:
            return self._db.execute("SELECT 1 FROM chats WHERE id = ?", (chat,)).fetchone() is not None

    def rename(self, chat: int, title: str) -> None:
        """Raises NoSuchChat."""
        with self._writing():
            self._changed("UPDATE chats SET title = ? WHERE id = ?", _shown(title), chat)

    def delete(self, chat: int) -> None:
        """Delete a conversation and its turns, if it still exists."""
        with self._writing():
            self._db.execute("DELETE FROM chats WHERE id = ?", (chat,))

    def add_turn(self, chat: int, parent: int | None, turn: Turn) -> int:
        """Add a turn after `parent`, or as a first one, and move the tip to it. Raises NoSuchChat."""
        with self._writing():
            self._changed("UPDATE chats SET changed = ? WHERE id = ?", time.time(), chat)
            if parent is not None:
                self._belongs(chat, parent)
            row = (chat, parent, turn.finish_reason, _searched(turn), _dumped(turn))
            added = self._inserted(
                "INSERT INTO turns (chat, parent, finish_reason, text, record) VALUES (?, ?, ?, ?, ?)", *row
            )
            self._db.execute("UPDATE chats SET tip = ? WHERE id = ?", (added, chat))
        return added

    def update(self, node: int, turn: Turn) -> None:
        """Replace the stored turn. Raises NoSuchChat."""
        with self._writing():
            row = (turn.finish_reason, _searched(turn), _dumped(turn), node)
            self._changed("UPDATE turns SET finish_reason = ?, text = ?, record = ? WHERE id = ?", *row)

    def remove(self, node: int) -> None:
        """Delete a turn and its descendants, and move the tip to its parent. An empty conversation is deleted too."""
        with self._writing():
            row = self._db.execute("SELECT chat, parent FROM turns WHERE id = ?", (node,)).fetchone()
            if row is None:
                return
            chat, parent = row
            self._db.execute("DELETE FROM turns WHERE id = ?", (node,))
            self._db.execute("UPDATE chats SET tip = ? WHERE id = ?", (parent, chat))
            self._db.execute(
                "DELETE FROM chats WHERE id = ? AND NOT EXISTS (SELECT 1 FROM turns WHERE chat = ?)", (chat, chat)
            )

    def tree(self, chat: int) -> list[Node]:
        """All turns of a conversation, in the order in which they were added. Raises NoSuchChat."""
        with self._lock:
            self.title(chat)
            rows = self._db.execute(
                "SELECT id, parent, record, finish_reason, text FROM turns WHERE chat = ? ORDER BY id", (chat,)
            ).fetchall()
        siblings: dict[int | None, tuple[int, ...]] = {}
        for node, parent, *_ in rows:
            siblings[parent] = (*siblings.get(parent, ()), node)
        return [_node(row, siblings[row[1]]) for row in rows]

    def path(self, chat: int) -> tuple[Node, ...]:
        """The turns from the first to the tip. Raises NoSuchChat."""
        with self._lock:
            nodes = {node.id: node for node in self.tree(chat)}
            at = self._tip(chat)
        path = []
        while at in nodes:
            path.append(nodes.pop(at))
            at = path[-1].parent
        return tuple(reversed(path))

    def resume(self, chat: int) -> tuple[Node, ...]:
        """`show_branch` for the tip. Raises NoSuchChat."""
        with self._writing():
            self.title(chat)
            return self.show_branch(chat, self._tip(chat))

    def show(self, chat: int, node: int | None) -> tuple[Node, ...]:
        """Move the tip to a turn, or before the first, and return the path to it. Raises NoSuchChat."""
        with self._writing():
            if node is not None:
                self._belongs(chat, node)
            if node != self._tip(chat):  # so that a conversation can be read where nothing can be written
                self._changed("UPDATE chats SET tip = ? WHERE id = ?", node, chat)
            return self.path(chat)

    def show_branch(self, chat: int, node: int | None) -> tuple[Node, ...]:
        """Move the tip from a turn along its latest descendants to the last, and return the path. Raises NoSuchChat."""
        with self._writing():
            last = {parent: child for child, parent in self._db.execute(
                "SELECT id, parent FROM turns WHERE chat = ? ORDER BY id", (chat,)
            )}  # fmt: skip
            at = node
            while at in last:
                at = last.pop(at)
            return self.show(chat, at)

    def insert(self, title: str, turns: Sequence[tuple[int | None, Turn]], tip: int | None) -> int:
        """Add a conversation. Each turn has the index of its parent in `turns`, and `tip` is an index too."""
        with self._writing():
            chat = self.add_chat(title)
            nodes: list[int] = []
            for parent, turn in turns:
                kept = turn if turn.complete else replace(turn, finish_reason=CANCELLED)
                nodes.append(self.add_turn(chat, None if parent is None else nodes[parent], kept))
            self._db.execute("UPDATE chats SET tip = ? WHERE id = ?", (None if tip is None else nodes[tip], chat))
        return chat

    def presets(self) -> dict[str, Settings]:
        """The readable presets by name."""
        kept = {}
        for name in self.preset_names():
            try:
                kept[name] = self.preset(name)
            except BadRecord as error:
                log.warning("A preset cannot be read: %s", error)
        return kept

    def preset_names(self) -> list[str]:
        """In alphabetical order, including those that cannot be read."""
        with self._lock:
            rows = self._db.execute("SELECT name FROM presets ORDER BY name").fetchall()
        return [str(name) for (name,) in rows]

    def preset(self, name: str) -> Settings:
        """Raises BadRecord if there is no such preset, or if it cannot be read."""
        with self._lock:
            row = self._db.execute("SELECT record FROM presets WHERE name = ?", (storable(name),)).fetchone()
        if row is None:
            raise BadRecord("This preset has been deleted: choose another one.")
        try:
            return settings_of(_loaded(row[0]))
        except BadRecord as error:
            raise BadRecord(f"This preset cannot be read ({error}) Delete it, or save it again.") from error

    def keep_preset(self, name: str, settings: Settings) -> None:
        """Save settings under a name, replacing the preset that has it."""
        with self._writing():
            record = json.dumps(settings_record(settings))
            self._db.execute("REPLACE INTO presets VALUES (?, ?)", (storable(name), record))

    def drop_preset(self, name: str) -> None:
        with self._writing():
            self._db.execute("DELETE FROM presets WHERE name = ?", (storable(name),))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction, or a part of the one that is already open."""
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            try:
                with self._db:
                    self._db.execute("BEGIN IMMEDIATE")
                    yield
            except sqlite3.OperationalError as error:
                raise NotKept(
                    f"The history cannot be written ({error}): make room on its disk, and copy from the page what you "
                    "need before you close it."
                ) from error

    def _inserted(self, statement: str, *values: object) -> int:
        row = self._db.execute(statement, values).lastrowid
        assert row is not None
        return row

    def _changed(self, statement: str, *values: object) -> None:
        if self._db.execute(statement, values).rowcount == 0:
            raise NoSuchChat("This conversation has been deleted: start a new one.")

    def _tip(self, chat: int) -> int | None:
        """Raises NoSuchChat."""
        row: tuple[int | None] | None = self._db.execute("SELECT tip FROM chats WHERE id = ?", (chat,)).fetchone()
        if row is None:
            raise NoSuchChat("This conversation has been deleted: start a new one.")
        return row[0]

    def _belongs(self, chat: int, node: int) -> None:
        if self._db.execute("SELECT 1 FROM turns WHERE id = ? AND chat = ?", (node, chat)).fetchone() is None:
            raise NoSuchChat("This part of the conversation has been deleted: open it again.")


def _searched(turn: Turn) -> str:
    """The text that searches look through."""
    files = (text for file in turn.files for text in (file.name, file.text))
    return storable("\n".join([turn.prompt, turn.text, *files]))


def _shown(title: str) -> str:
    """The title, cut to LONGEST_TITLE."""
    title = storable(title)
    return title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"


def _dumped(turn: Turn) -> str:
    return json.dumps(sound(turn_record(turn)), allow_nan=False)


def _loaded(record: str) -> Any:
    try:
        return json.loads(record)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRecord("It is not JSON.") from error


def _node(row: tuple[Any, ...], siblings: tuple[int, ...]) -> Node:
    node, parent, record, finish_reason, text = row
    try:
        loaded = _loaded(record)
        if isinstance(loaded, dict):
            loaded["finish_reason"] = finish_reason
        return Node(node, parent, turn_of(loaded), siblings)
    except BadRecord as error:
        log.warning("Turn %s of the history cannot be read: %s", node, error)
        return Node(node, parent, Turn(storable(str(text)), finish_reason=CANCELLED), siblings, unreadable=True)
