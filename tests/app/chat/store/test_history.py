"""What the history keeps, compared with lists and dictionaries in memory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from outrider.app.chat.core.conversation import CANCELLED, Turn
from outrider.app.chat.core.settings import Settings
from outrider.app.chat.store.history import Chat, History, NoSuchChat, NotKept, title_of
from outrider.app.chat.store.record import BadRecord
from outrider.app.chat.store.transfer import exchange_of, read_exchange, to_json
from outrider.pipelines import Span

from .turns import STATS, TEXTS, altered, fill_disk, kept, stored, turns


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


Reference.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestAnyOrderOfCallsLeavesWhatListsWould = Reference.TestCase


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


@pytest.mark.parametrize(
    "record", ["{}", "3", "[" * 900 + "]" * 900, '{"prompt": {}}', '{"prompt": "x", "stats": 1}', '{"prompt": "x', ""]
)
def test_an_unreadable_turn_is_marked_and_the_others_are_shown(tmp_path: Path, record: str) -> None:
    path = tmp_path / "history.sqlite"
    history = History(path)
    chat = history.add_chat("Half")
    first = history.add_turn(chat, None, Turn("One?", spans=(Span("1", "target"),), finish_reason="stop"))
    history.add_turn(chat, first, Turn("Two?", finish_reason="stop"))
    history.close()
    altered(path, "PRAGMA ignore_check_constraints = 1", f"UPDATE turns SET record = '{record}' WHERE id = {first}")
    again = History(path)
    assert again.notice is None
    one, two = again.path(chat)
    assert (one.unreadable, one.turn.prompt, one.turn.complete) == (True, "One?\n1", True)
    assert (two.unreadable, two.turn.prompt) == (False, "Two?")
    again.delete(chat)
    assert again.chats() == []
    again.close()


@pytest.mark.parametrize("record", ['{"top_k": "many"}', '{"top_k"'])
def test_an_unreadable_preset_hides_no_other_and_can_be_deleted(tmp_path: Path, record: str) -> None:
    path = tmp_path / "history.sqlite"
    history = History(path)
    history.keep_preset("good", Settings(top_k=3))
    history.keep_preset("bad", Settings())
    history.close()
    altered(path, "PRAGMA ignore_check_constraints = 1", f"UPDATE presets SET record = '{record}' WHERE name = 'bad'")
    again = History(path)
    assert again.notice is None
    assert again.presets() == {"good": Settings(top_k=3)}
    assert again.preset_names() == ["bad", "good"]
    with pytest.raises(BadRecord, match="Delete it"):
        again.preset("bad")
    again.drop_preset("bad")
    assert again.preset_names() == ["good"]
    again.close()


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


def test_a_full_disk_is_told_and_changes_nothing_that_was_stored(tmp_path: Path) -> None:
    history = History(tmp_path / "history.sqlite")
    chat = history.add_chat("Area")
    first = history.add_turn(chat, None, Turn("Write area.", finish_reason="stop"))
    fill_disk(history)
    long = Turn("Write volume.", spans=(Span("x" * 100_000, "target"),), finish_reason="stop")
    with pytest.raises(NotKept, match=r"full.*make room on its disk"):
        history.add_turn(chat, first, long)
    with pytest.raises(NotKept):
        history.update(first, long)
    assert [node.turn.prompt for node in history.resume(chat)] == ["Write area."]
    assert [node.turn.text for node in history.tree(chat)] == [""]
    history.close()


def test_a_title_is_the_first_line_of_the_prompt() -> None:
    assert title_of("\n  Rename it:\n\ndef f(): ...\nmore") == "Rename it: def f(): ..."
    assert title_of("改名：\ndef f(): ...") == "改名： def f(): ..."
    assert title_of("Rename it.\ndef f(): ...") == "Rename it."
    assert title_of("x" * 100) == "x" * 59 + "…"
    assert title_of("Rename it:\n```python\ndef f(): ...\n```") == "Rename it: def f(): ..."
    assert title_of(" \n ") == title_of("```\n```") == "..."
