"""Any turns, as hypothesis makes them, and histories changed by other programs."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from hypothesis import strategies as st

from outrider.app.chat.core.conversation import CANCELLED, File, Turn
from outrider.app.chat.core.receipt import Receipt
from outrider.app.chat.core.settings import Settings
from outrider.app.chat.core.time_saved import TimeSaved
from outrider.app.chat.store.history import History
from outrider.app.chat.store.record import turn_of, turn_record
from outrider.pipelines import Span, Statistics

TEXTS = st.text(st.sampled_from("aA bß\n\r`#<!->\\你 %_'\"\ud800")) | st.just("## Prompt <!-- prompt -->\nx")
STATS = Statistics(5, 0, 3, 2, 4, 1, {"suffix": 4}, {"suffix": 1}, 0.1, None, 0.2, 0.0, 0.3)
turns = st.builds(
    Turn,
    TEXTS,
    settings=st.builds(Settings, temperature=st.floats(0, 2), seed=st.none() | st.integers(0, 9), system=TEXTS),
    files=st.lists(st.builds(File, TEXTS, TEXTS), max_size=2).map(tuple),
    model=TEXTS,
    spans=st.lists(st.builds(Span, TEXTS, st.sampled_from(["target", "suffix"])), max_size=3).map(tuple),
    token_ids=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", CANCELLED]),
    stats=st.sampled_from([None, STATS]),
    time_saved=st.sampled_from([None, TimeSaved(1.5, {"suffix": 2.5}, {"suffix": 1.0}, 0.5)]),
    receipt=st.sampled_from([None, Receipt(3, 1, 0.5, 0.25), Receipt(3, None, 0.5, 0.25)]),
)


def stored(text: str) -> str:
    return text.replace("\ud800", "?")


def kept(turn: Turn) -> Turn:
    """Without lone surrogates."""
    return turn_of(json.loads(json.dumps(turn_record(turn)).replace("\\ud800", "?")))


def altered(path: Path, *statements: str) -> None:
    """As somebody else changes a history, with SQLite alone."""
    History(path).close()
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def fill_disk(history: History) -> None:
    """Let the file grow no more, which for SQLite is what a full disk is."""
    (pages,) = history._db.execute("PRAGMA page_count").fetchone()
    history._db.execute(f"PRAGMA max_page_count = {pages}")
