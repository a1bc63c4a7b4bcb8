"""What the history keeps, compared with lists and dictionaries in memory."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from outrider.app.chat.core.conversation import CANCELLED, File, Turn
from outrider.app.chat.core.receipt import Receipt
from outrider.app.chat.core.settings import Settings
from outrider.app.chat.core.time_saved import TimeSaved
from outrider.app.chat.store.history import Chat, History, NoSuchChat, title_of
from outrider.app.chat.store.record import BadRecord, settings_of, settings_record, turn_of, turn_record
from outrider.app.chat.store.transfer import BadImport, exchange_of, read_exchange, to_json, to_markdown
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


class Reference(RuleBasedStateMachine):
    """Any order of calls leaves what a list of [title, {turn: (parent, turn)}, tip] would."""

    chats: Bundle[int] = Bundle("chats")
    nodes: Bundle[tuple[int, int]] = Bundle("nodes")

    @initialize()
    def begin(self) -> None:
        self.history = History(Path(":memory:"))
        self.kept: dict[int, list] = {}  # by chat: title, turns by id, tip
        self.order: list[int] = []  # the last changed comes last

    def teardown(self) -> None:
        if hasattr(self, "history"):
            self.compare()
            self.history.close()

    def compare(self) -> None:
        for search in ("", "a", "ß", "SS", "%", "## p"):
            found = [
                Chat(chat, self.kept[chat][0])
                for chat in reversed(self.order)
                if search.casefold() in self.kept[chat][0].casefold()
                or any(search.casefold() in said(turn) for _, turn in self.kept[chat][1].values())
            ]
            assert self.history.chats(search) == found
        for chat, (_, tree, tip) in self.kept.items():
            assert [(node.id, node.parent, node.turn) for node in self.history.tree(chat)] == [
                (node, parent, kept(turn)) for node, (parent, turn) in tree.items()
            ]
            assert [node.id for node in self.history.path(chat)] == way(tree, tip)
            for node in self.history.path(chat):
                assert node.siblings == tuple(n for n, (parent, _) in tree.items() if parent == node.parent)

    @rule(target=chats, title=TEXTS)
    def add_chat(self, title: str) -> int:
        chat = self.history.add_chat(title)
        self.kept[chat] = [stored(title), {}, None]
        self.order.append(chat)
        return chat

    @rule(target=nodes, chat=chats, turn=turns, data=st.data())
    def add_turn(self, chat: int, turn: Turn, data: st.DataObject) -> tuple[int, int]:
        if chat not in self.kept:
            with pytest.raises(NoSuchChat):
                self.history.add_turn(chat, None, turn)
            return chat, 0
        parent = data.draw(st.sampled_from([None, *self.kept[chat][1]]))
        node = self.history.add_turn(chat, parent, turn)
        self.kept[chat][1][node] = (parent, turn)
        self.kept[chat][2] = node
        self.order.remove(chat)
        self.order.append(chat)
        return chat, node

    @rule(node=nodes, turn=turns)
    def update(self, node: tuple[int, int], turn: Turn) -> None:
        chat, at = node
        if at in self.kept.get(chat, ["", {}])[1]:
            self.history.update(at, turn)
            self.kept[chat][1][at] = (self.kept[chat][1][at][0], turn)
        else:
            with pytest.raises(NoSuchChat):
                self.history.update(at, turn)

    @rule(node=nodes)
    def remove(self, node: tuple[int, int]) -> None:
        chat, at = node
        self.history.remove(at)
        if at not in self.kept.get(chat, ["", {}])[1]:
            return
        tree = self.kept[chat][1]
        self.kept[chat][2] = tree[at][0]
        for other in [other for other in tree if at in way(tree, other)]:
            del tree[other]
        if not tree:
            del self.kept[chat]
            self.order.remove(chat)

    @rule(node=nodes, through=st.booleans())
    def show(self, node: tuple[int, int], through: bool) -> None:
        chat, at = node
        show = self.history.show_branch if through else self.history.show
        if at not in self.kept.get(chat, ["", {}])[1]:
            with pytest.raises(NoSuchChat):
                show(chat, at)
            return
        tree = self.kept[chat][1]
        while through and (children := [n for n, (parent, _) in tree.items() if parent == at]):
            at = children[-1]
        assert [shown.id for shown in show(chat, at)] == way(tree, at)
        self.kept[chat][2] = at

    @rule(chat=chats, title=TEXTS)
    def rename(self, chat: int, title: str) -> None:
        if chat in self.kept:
            self.history.rename(chat, title)
            self.kept[chat][0] = stored(title)
        else:
            with pytest.raises(NoSuchChat):
                self.history.rename(chat, title)

    @rule(chat=chats)
    def delete(self, chat: int) -> None:
        self.history.delete(chat)
        if self.kept.pop(chat, None):
            self.order.remove(chat)

    @rule(chat=chats)
    def round_trip(self, chat: int) -> None:
        if chat not in self.kept or "\ud800" in self.kept[chat][0]:
            return
        tree, path = self.history.tree(chat), self.history.path(chat)
        sent = exchange_of(self.history.title(chat), tree, path[-1].id if path else None)
        content = to_json(sent).encode("utf-8", "surrogatepass")
        if b"\xed\xa0\x80" in content:  # a lone surrogate, which UTF-8 does not have
            return
        assert read_exchange(content) == sent
        other = self.history.insert(sent.title, sent.turns, sent.tip)
        again = self.history.path(other)
        assert exchange_of(sent.title, self.history.tree(other), again[-1].id if again else None) == sent
        self.history.delete(other)


def way(tree: dict, at: int | None) -> list[int]:
    return [] if at is None else [*way(tree, tree[at][0]), at]


def said(turn: Turn) -> str:
    return stored("\n".join([turn.prompt, turn.text, *(t for f in turn.files for t in (f.name, f.text))])).casefold()


def stored(text: str) -> str:
    return text.replace("\ud800", "?")


def kept(turn: Turn) -> Turn:
    """Without lone surrogates."""
    return turn_of(json.loads(json.dumps(turn_record(turn)).replace("\\ud800", "?")))


Reference.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestAnyOrderOfCallsLeavesWhatListsWould = Reference.TestCase


@given(turns)
@settings(max_examples=50)
def test_a_turn_comes_back_from_its_record(turn: Turn) -> None:
    assert turn_of(turn_record(turn)) == kept(turn)
    assert settings_of(settings_record(turn.settings)) == kept(turn).settings


@given(st.text("ab #\\<!->\n\r`"), st.lists(turns, min_size=1, max_size=4))
@settings(max_examples=50)
def test_markdown_brings_back_what_was_said(title: str, path: list[Turn]) -> None:
    content = to_markdown(title, path).encode("utf-8", "surrogatepass")
    if b"\xed\xa0\x80" in content:
        return
    back = read_exchange(content)
    assert [parent for parent, _ in back.turns] == [None, *range(len(path) - 1)]
    assert [(turn.prompt, turn.text) for _, turn in back.turns] == [(turn.prompt, turn.text) for turn in path]
    assert [[f.text for f in turn.files] for _, turn in back.turns] == [[f.text for f in turn.files] for turn in path]


def test_code_is_fenced_in_markdown_and_prose_is_not() -> None:
    code = "def f(x):\n    return x"
    turn = Turn(f"Rename it:\n{code}", files=(File("f.py", "x = 1\n"),), spans=(Span(code, "target"),))
    text = to_markdown("Title", [turn])
    assert f"Rename it:\n```python\n{code}\n```\n" in text
    assert "```\nx = 1\n\n```\n" in text
    assert text.endswith(f"\n```python\n{code}\n```\n")
    assert "```" not in to_markdown("Title", [Turn("Hello", spans=(Span("Good day.", "target"),))])
    own = Turn("Say:\n```\ndef f():\n    pass\n```", spans=(Span("Good day.", "target"),))
    assert to_markdown("Title", [own]).count("```") == 2


def test_a_fence_taken_away_by_hand_takes_no_line_of_the_text_with_it() -> None:
    text = to_markdown("Title", [Turn("Hello", spans=(Span("def f(x):\n    return x", "target"),))])
    edited = text.replace("```python\n", "").replace("\n```", "")
    ((_, turn),) = read_exchange(edited.encode()).turns
    assert turn.text == "def f(x):\n    return x"


@pytest.mark.parametrize(
    ("token_ids", "looping"),
    [
        ([*range(100), *[7] * 48], True),
        ([*range(100), *[7] * 47], False),
        ([1, 2, 3] * 16, True),
        (list(range(20)) * 4, True),
        (list(range(20)) * 3, False),
        (list(range(65)) * 8, False),
        ([*[7] * 48, 8], False),
        ([], False),
    ],
)
def test_an_answer_loops_that_ends_in_the_same_tokens_again_and_again(token_ids: list[int], looping: bool) -> None:
    assert Turn("Hello", token_ids=tuple(token_ids)).is_looping == looping


def test_a_history_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "made" / "history.sqlite"
    history = History(path)
    chat = history.add_chat("First")
    first = history.add_turn(chat, None, Turn("One?", spans=(Span("1", "target"),), finish_reason="stop", stats=STATS))
    history.add_turn(chat, first, Turn("Two?"))  # its answer was never finished
    history.keep_preset("warm", Settings(temperature=1.0, system="Be kind."))
    history.close()
    again = History(path)
    assert again.notice is None
    assert again.chats() == [Chat(chat, "First")]
    one, two = again.path(chat)
    assert (one.turn.text, one.turn.stats) == ("1", STATS)
    assert (two.turn.prompt, two.turn.finish_reason) == ("Two?", CANCELLED)
    assert again.presets() == {"warm": Settings(temperature=1.0, system="Be kind.")}
    again.drop_preset("warm")
    assert again.presets() == {}
    again.close()


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
    fresh = History(path)
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


@pytest.mark.parametrize("record", ["{}", "3", "[" * 900 + "]" * 900, '{"prompt": {}}', '{"prompt": "x", "stats": 1}'])
def test_an_unreadable_turn_is_marked_and_the_others_are_shown(tmp_path: Path, record: str) -> None:
    path = tmp_path / "history.sqlite"
    history = History(path)
    chat = history.add_chat("Half")
    first = history.add_turn(chat, None, Turn("One?", spans=(Span("1", "target"),), finish_reason="stop"))
    history.add_turn(chat, first, Turn("Two?", finish_reason="stop"))
    history.close()
    altered(path, "PRAGMA ignore_check_constraints = 1", f"UPDATE turns SET record = '{record}' WHERE id = {first}")
    again = History(path)
    one, two = again.path(chat)
    assert (one.unreadable, one.turn.prompt, one.turn.complete) == (True, "One?\n1", True)
    assert (two.unreadable, two.turn.prompt) == (False, "Two?")
    again.delete(chat)
    assert again.chats() == []
    again.close()


def test_an_unreadable_preset_hides_no_other_and_can_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = History(path)
    history.keep_preset("good", Settings(top_k=3))
    history.keep_preset("bad", Settings())
    history.close()
    altered(path, """UPDATE presets SET record = '{"top_k": "many"}' WHERE name = 'bad'""")
    again = History(path)
    assert again.presets() == {"good": Settings(top_k=3)}
    assert again.preset_names() == ["bad", "good"]
    with pytest.raises(BadRecord, match="Delete it"):
        again.preset("bad")
    again.drop_preset("bad")
    assert again.preset_names() == ["good"]
    again.close()


def test_fractions_that_an_earlier_release_kept_can_be_read(tmp_path: Path) -> None:
    record = {"prompt": "x", "settings": {"max_new_tokens": 20.5, "draft_tokens": 2.5}}
    assert turn_of(record).settings == Settings(max_new_tokens=20, draft_tokens=2)


def test_a_conversation_never_opens_empty_while_it_has_turns() -> None:
    history = History(Path(":memory:"))
    chat = history.add_chat("Branches")
    first = history.add_turn(chat, None, Turn("One?", finish_reason="stop"))
    second = history.add_turn(chat, first, Turn("Two?", finish_reason="stop"))
    history.show(chat, None)  # as a turn that was taken back left it
    assert [node.id for node in history.resume(chat)] == [first, second]
    other = history.add_turn(chat, None, Turn("One again?", finish_reason="stop"))
    history.show(chat, first)
    assert [node.id for node in history.resume(chat)] == [first, second]
    history.remove(first)
    assert [node.id for node in history.resume(chat)] == [other]
    history.close()


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


def altered(path: Path, *statements: str) -> None:
    """As somebody else changes a history, with SQLite alone."""
    History(path).close()
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def test_a_folder_that_cannot_be_written_is_said_and_the_page_goes_on_without(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    history = History(tmp_path / "data" / "history.sqlite")
    assert "cannot be kept" in history.notice
    assert history.notice.kind == "HistoryNotKept"
    chat = history.add_chat("For now")
    assert history.chats() == [Chat(chat, "For now")]


def test_threads_and_two_programs_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    histories = [History(path), History(path)]

    def write(history: History) -> None:
        for i in range(20):
            chat = history.add_chat(f"{i}")
            history.add_turn(chat, None, Turn("x"))

    threads = [threading.Thread(target=write, args=(history,)) for history in histories * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(histories[0].chats()) == len(histories[1].chats("x")) == 80
    for history in histories:
        history.close()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe\x00", b"just text", b"{", b"{}", b'{"format": "outrider-chat", "version": 2}',
        b'{"format": "outrider-chat", "version": 1, "title": "x", "turns": [{"prompt": 1}]}',
        b'{"format": "outrider-chat", "version": 1, "title": "x", "turns": [{"prompt": "x", "parent": 0}]}',
        b'{"format": "outrider-chat", "version": 1, "title": "x", "turns": [{"prompt": "x"}], "tip": 1}',
        b'{"format": "outrider-chat", "version": 1, "title": "x", "turns": [{"prompt": "x", "settings": {"y": 1}}]}',
        b"## Answer <!-- answer -->\n\nx\n",
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_refused(content: bytes) -> None:
    with pytest.raises((BadImport, BadRecord)):
        read_exchange(content)


def test_a_title_is_the_first_line_of_the_prompt() -> None:
    assert title_of("\n  Rename it:\n\ndef f(): ...\nmore") == "Rename it: def f(): ..."
    assert title_of("改名：\ndef f(): ...") == "改名： def f(): ..."
    assert title_of("Rename it.\ndef f(): ...") == "Rename it."
    assert title_of("x" * 100) == "x" * 59 + "…"
    assert title_of(" \n ") == "..."
