"""Imports and names made to do harm: nothing of them is kept, or what is kept can be opened and deleted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.app.chat.store.history import LONGEST_TITLE, History
from outrider.app.chat.store.record import BadRecord
from outrider.app.chat.store.transfer import (
    LARGEST_TEXT,
    MOST_FILES,
    MOST_TURNS,
    BadImport,
    exchange_of,
    read_exchange,
    to_json,
    to_markdown,
)
from outrider.app.chat.ui import rendering
from outrider.app.chat.ui.message_buttons import to_file

STATS = {
    "prompt_tokens": 5, "cached_tokens": 0, "new_tokens": 3, "passes": 2, "drafted": 4, "accepted": 1,
    "drafted_by": {"suffix": 4}, "accepted_by": {"suffix": 1}, "ttft_s": 0.1, "tokens_per_s": None, "target_s": 0.2,
    "draft_s": 0.0, "total_s": 0.3,
}  # fmt: skip
SAVING = {
    "plain_ms": 1.5, "plain_passes": {"suffix": 2.5}, "took_ms": {"suffix": 1.0}, "spread_ms": 0.5, "odd_ms": 0.25,
    "is_measured": False,
}  # fmt: skip
RECEIPT = {"num_tokens": 3, "differs_at": None, "plain_s": 0.5, "drafted_s": 0.25}
TURN = {
    "prompt": "x", "settings": {"temperature": 0.5}, "files": [{"name": "a", "text": "b"}], "model": "m",
    "spans": [{"text": "a", "source": "target"}], "token_ids": [1], "finish_reason": "stop", "stats": STATS,
    "saving": SAVING, "receipt": RECEIPT,
}  # fmt: skip
NAMES = [
    "../../etc/passwd", "..\\..\\boot.ini", "/etc/passwd", "C:\\x", "a\x00b", "con", "~/.ssh/id", "a/b", "<img src=x>",
]  # fmt: skip


def whole(*turns: Any, **values: Any) -> bytes:
    exchange = {"format": "outrider-chat", "version": 1, "title": "x", "tip": None, "turns": list(turns), **values}
    return json.dumps(exchange).encode()


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


POISON = {
    "a mapping for a count": whole({**TURN, "stats": {**STATS, "new_tokens": {"a": 1}}}),
    "a count for a mapping": whole({**TURN, "stats": {**STATS, "drafted_by": 3}}),
    "a missing figure": whole({**TURN, "stats": {"new_tokens": 1}}),
    "an unknown figure": whole({**TURN, "receipt": {**RECEIPT, "num_tokens": "3"}}),
    "other drafters": whole({**TURN, "saving": {**SAVING, "took_ms": {"draft_model": 1.0}}}),
    "a class that is HTML": whole({**TURN, "spans": [{"text": "x", "source": 'x"><img src=x onerror=alert(1)>'}]}),
    "an end that is HTML": whole({**TURN, "finish_reason": "<img src=x>"}),
    "a number for a text": whole({**TURN, "prompt": 1}),
    "no text": whole({**TURN, "prompt": None}),
    "no prompt": whole({"model": "m"}),
    "a text for a number": whole({**TURN, "token_ids": ["1"]}),
    "a fraction of a token": whole({**TURN, "token_ids": [1.5]}),
    "a truth for a number": whole({**TURN, "token_ids": [True]}),
    "an unknown setting": whole({**TURN, "settings": {"__class__": 1}}),
    "an unknown mode": whole({**TURN, "settings": {"mode": "<b>"}}),
    "a seed below zero": whole({**TURN, "settings": {"seed": -1}}),
    "settings that are a list": whole({**TURN, "settings": ["mode"]}),
    "a turn that is a list": whole([]),
    "a parent of its own": whole({**TURN, "parent": 0}),
    "a parent to come": whole({**TURN, "parent": 1}, TURN),
    "a truth for a parent": whole(TURN, {**TURN, "parent": False}),
    "a tip below zero": whole(TURN, tip=-1),
    "a tip that is a fraction": whole(TURN, tip=0.5),
    "a title that is a list": whole(TURN, title=[]),
    "infinity": whole(TURN).replace(b"0.25", b"1e999"),
    "no number": whole(TURN).replace(b"0.25", b"NaN"),
    "a huge number": whole(TURN).replace(b"[1]", b"[1" + b"0" * 400 + b"]"),
    "more digits than Python reads": whole(TURN).replace(b"[1]", b"[1" + b"0" * 9000 + b"]"),
    "deep": whole(TURN).replace(b'"model": "m"', f'"model": {deep(50)}'.encode()),
    "deeper than Python reads": whole(TURN).replace(b'"model": "m"', f'"model": {deep(100_000)}'.encode()),
    "deep where the format stands": f'{{"format": {deep(900)}}}'.encode(),
    "deep where nobody looks": f'{{"format": "outrider-chat", "version": 1, "x": {deep(500)}}}'.encode(),
    "too many turns": whole(*[{"prompt": ""}] * (MOST_TURNS + 1)),
    "too many files": whole({**TURN, "files": [{"name": "", "text": ""}] * (MOST_FILES + 1)}),
    "too much text": whole(*[{"prompt": "x" * 10_000}] * (LARGEST_TEXT // 10_000), {"prompt": "x"}),
    "too much text in files": whole(*[{**TURN, "files": [{"name": "", "text": "x" * LARGEST_TEXT}]}]),
    "too much text in Markdown": b"## Prompt <!-- prompt -->\n\n" + b"x\n" * (LARGEST_TEXT // 2 + 1),
    "too many prompts": b"## Prompt <!-- prompt -->\n\n\n\n## Answer <!-- answer -->\n\n\n\n" * (MOST_TURNS + 1),
}


@pytest.mark.parametrize("content", POISON.values(), ids=POISON)
def test_a_poisoned_import_is_refused_in_words(content: bytes) -> None:
    with pytest.raises((BadImport, BadRecord)) as refusal:
        read_exchange(content)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": 1}, "turns.1.prompt"),
        ({"stats": {**STATS, "passes": "2"}}, "turns.1.stats.passes"),
        ({"receipt": {**RECEIPT, "plain_s": None}}, "turns.1.receipt.plain_s"),
        ({"settings": {"mode": "fast"}}, "turns.1.settings.mode"),
        ({"saving": {**SAVING, "plain_passes": 1}}, "turns.1.saving.plain_passes"),
        ({"parent": "0"}, "turns.1.parent"),
    ],
)
def test_a_refusal_names_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRecord, match=re.escape(field)):
        read_exchange(whole(TURN, {**TURN, **change}))


def test_an_export_has_the_values_that_the_first_release_wrote() -> None:
    exchange = read_exchange(whole({"parent": None, **TURN}))
    (record,) = json.loads(to_json(exchange))["turns"]
    assert list(record) == ["parent", *TURN]
    later = {"stats": {**STATS, "acceptance": "exact"}}  # which that release did not know
    assert {**record, "settings": TURN["settings"]} == {"parent": None, **TURN, **later}
    assert record["settings"]["temperature"] == 0.5


def test_what_was_exported_before_more_was_known_of_a_saving_can_be_read() -> None:
    older = {name: value for name, value in SAVING.items() if name not in ("spread_ms", "odd_ms", "is_measured")}
    (record,) = json.loads(to_json(read_exchange(whole({**TURN, "saving": older}))))["turns"]
    assert record["saving"] == {**older, "spread_ms": 0.0, "odd_ms": 0.0, "is_measured": True}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_turn_that_cannot_be_kept_keeps_the_others_out(place: int) -> None:
    turns: list[Any] = [dict(TURN), dict(TURN), dict(TURN)]
    turns[place] = {**TURN, "stats": {}}
    history = History(Path(":memory:"))
    with pytest.raises(BadRecord):
        read_exchange(whole(*turns))
    good = read_exchange(whole(TURN))
    with pytest.raises(IndexError):
        history.insert("half", [*good.turns, (9, good.turns[0][1])], None)
    assert history.chats() == []
    history.close()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None, print_blob=True)
def test_whatever_is_changed_in_an_import_it_is_refused_or_can_be_used(data: st.DataObject) -> None:
    record = json.loads(json.dumps(TURN))
    at, name = record, data.draw(st.sampled_from(sorted(record)))
    while isinstance(at[name], (dict, list)) and at[name] and data.draw(st.booleans()):
        at = at[name]
        name = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
    at[name] = data.draw(VALUES)
    try:
        exchange = read_exchange(whole(record, title=data.draw(st.text(st.characters()))))
    except (BadImport, BadRecord):
        return
    history = History(Path(":memory:"))
    chat = history.insert(exchange.title, exchange.turns, exchange.tip)
    (node,) = history.resume(chat)
    shown = rendering.chat_messages([node], True) + rendering.chat_messages([node], False)
    json.dumps(shown, ensure_ascii=False).encode()  # as the page sends it
    rendering.legend_html(("auto",), turns=[node.turn])
    history.title(chat).encode()
    assert [kept.id for kept in history.chats(node.turn.prompt)] == [chat]
    again = read_exchange(to_json(exchange_of(exchange.title, history.tree(chat), node.id)).encode())
    assert again.turns == ((None, node.turn),)
    to_markdown(exchange.title, [node.turn]).encode()
    history.delete(chat)
    assert history.chats() == []
    history.close()


@pytest.mark.parametrize("name", [*NAMES, "", ".", "..", "...", "\ud800", "x" * 5000, "你" * 5000])
def test_no_name_from_outside_becomes_a_path(name: str) -> None:
    parcel = json.loads(to_file(f"{name}.json", "x"))
    stem, _, ending = parcel["name"].rpartition(".")
    assert ending == "json"
    assert stem
    assert len(parcel["name"].encode()) < 250
    assert not set(stem) & set("/\\:\x00<>|?*\"'.~")
    stem.encode()


@pytest.mark.parametrize("name", NAMES)
def test_names_are_kept_as_text_and_touch_no_file(tmp_path: Path, name: str) -> None:
    history = History(tmp_path / "data" / "history.sqlite")
    files = sorted(tmp_path.rglob("*"))
    exchange = read_exchange(whole({**TURN, "files": [{"name": name, "text": "b"}], "model": name}, title=name))
    chat = history.insert(exchange.title, exchange.turns, exchange.tip)
    history.keep_preset(name, exchange.turns[0][1].settings)
    assert history.preset_names() == [name]
    assert history.title(chat) == name
    assert history.resume(chat)[0].turn.files[0].name == name
    assert "<img" not in str(rendering.chat_messages(history.resume(chat), True))
    history.drop_preset(name)
    history.delete(chat)
    assert (history.preset_names(), history.chats()) == ([], [])
    assert sorted(tmp_path.rglob("*")) == files
    history.close()


def test_a_title_is_no_longer_than_a_list_can_show() -> None:
    history = History(Path(":memory:"))
    chat = history.insert("x" * 1_000_000, (), None)
    assert history.title(chat) == "x" * (LONGEST_TITLE - 1) + "…"
    history.rename(chat, "y" * 1_000_000)
    assert len(history.title(chat)) == LONGEST_TITLE
    history.close()
