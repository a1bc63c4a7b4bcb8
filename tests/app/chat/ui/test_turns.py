"""What events do to the box and to the turns where several things happen at once or go wrong."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.core.conversation import File
from outrider.app.chat.launch import open_page
from outrider.app.chat.store.history import History, NotKept
from outrider.app.chat.store.transfer import exchange_of, to_json
from outrider.app.chat.ui import chat_events
from outrider.app.chat.ui.chat_events import ChatEvents
from outrider.app.chat.ui.chats import ChatList
from outrider.app.chat.ui.composer import Composer, Entry, Returned
from outrider.app.chat.ui.view import View

from ...conftest import free_port
from ..scripted import BEGINNING, END, Refused, ScriptedPipeline, ScriptedStream
from ..windows import GOOD, Window, Wire

TYPED = "Not yet sent."
FILES = (File("area.py", "def area(): ..."),)


class Failing(ScriptedStream):
    """Fails after its beginning."""

    def advance(self) -> Any:
        if self._begun:
            raise RuntimeError("a block was lost")
        return super().advance()


def refuses(*_: object) -> None:
    raise NotKept("The history cannot be written (full): make room.")


@pytest.fixture
def history() -> Iterator[History]:
    history = History(Path(":memory:"))
    yield history
    history.close()


@pytest.fixture
def window(history: History, pipeline: ScriptedPipeline) -> Window:
    """A window in which one prompt was answered."""
    pipeline.gate.set()
    window = Window(ChatEvents(Assistant(pipeline, "scripted"), history))
    window.ask("Write area.", *GOOD)
    return window


def pressed(window: Window, act: str, entry: Entry, text: str = TYPED) -> tuple[Any, ...]:
    """What a button of the first message makes."""
    event: Any = SimpleNamespace(_data={"action": act, "turn": window.view.nodes[0].id})
    return window.events.message_button(event, window.view, True, text, entry, window.request)


def taken_back(window: Window, text: str, entry: Entry, returned: Returned | None) -> tuple[str, Entry]:
    with gr.Blocks():
        typed, back, *_ = Composer().take_back(text, entry, returned, window.request)
    return typed, back


def returned_by(window: Window) -> Returned | None:
    """Write the answer, which fails, and give what goes back into the box."""
    drawn = list(window.events.answer(window.request, window.view, True))
    window.view = drawn[-1][0]
    return drawn[-1][2]


def began(window: Window, prompt: str, entry: Entry = Entry()) -> tuple[Any, ...]:  # noqa: B008  it cannot change
    begun = window.events.ask(window.request, prompt, entry, window.view, True, *GOOD)
    window.view = next(part for part in begun if isinstance(part, View))
    return begun


def test_what_was_written_before_a_failure_is_kept(
    window: Window, history: History, pipeline: ScriptedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    began(window, "Now rename it.")
    failing = Failing(pipeline.gate, "target", 2, pipeline.read_tokens)
    monkeypatch.setattr(pipeline, "stream", lambda *_, **__: failing)
    with pytest.warns(UserWarning, match="Something went wrong"):
        assert returned_by(window) is None
    assert window.view.chat is not None
    for nodes in (window.view.nodes, history.path(window.view.chat)):
        assert [node.turn.prompt for node in nodes] == ["Write area.", "Now rename it."]
        assert (nodes[-1].turn.text, nodes[-1].turn.finish_reason) == (BEGINNING, "cancelled")


@pytest.mark.parametrize("ends", [ScriptedStream, Failing])
def test_an_answer_goes_on_where_the_disk_is_full_and_the_page_says_so_once(
    ends: type[ScriptedStream],
    window: Window,
    history: History,
    pipeline: ScriptedPipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began(window, "Now rename it.")
    failing = ends(pipeline.gate, "target", 2, pipeline.read_tokens)
    monkeypatch.setattr(pipeline, "stream", lambda *_, **__: failing)
    monkeypatch.setattr(chat_events, "KEEP_S", 0.0)
    monkeypatch.setattr(history, "update", refuses)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        returned = returned_by(window)
    assert not isinstance(returned, Returned)
    assert sum("make room" in str(each.message) for each in told) == 1
    assert window.view.nodes[-1].turn.text == (BEGINNING if ends is Failing else BEGINNING + END)
    assert not window.view.is_answering
    window.events.stop(window.view, True, window.request)
    monkeypatch.undo()
    began(window, "Go on.")
    window.answer()
    assert [node.turn.prompt for node in window.view.nodes] == ["Write area.", "Now rename it.", "Go on."]


@pytest.mark.filterwarnings("ignore:No room")
def test_a_refused_prompt_stays_where_the_disk_is_full(
    window: Window, history: History, pipeline: ScriptedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    began(window, "Far too long.")
    pipeline.refusal = Refused("No room.")
    monkeypatch.setattr(history, "remove", refuses)
    assert returned_by(window) is None
    assert [node.turn.prompt for node in window.view.nodes] == ["Write area.", "Far too long."]
    assert not window.view.is_answering


@pytest.mark.filterwarnings("ignore:No room")
def test_a_prompt_that_is_refused_comes_back_before_what_was_typed_since(
    window: Window, pipeline: ScriptedPipeline
) -> None:
    began(window, "Far too long.", Entry(FILES))
    pipeline.refusal = Refused("No room.")
    returned = returned_by(window)
    assert len(window.view.nodes) == 1
    assert taken_back(window, "", Entry(), returned) == ("Far too long.", Entry(FILES))
    assert taken_back(window, TYPED, Entry(), returned) == (f"Far too long.\n\n{TYPED}", Entry(FILES))
    assert taken_back(window, TYPED, Entry(), None)[0] == gr.skip()


def test_an_edit_gives_back_what_was_typed_before_it_when_it_is_sent_or_left(window: Window) -> None:
    typed, entry, *_ = pressed(window, "edit", Entry(FILES))
    assert (typed, entry.files, entry.editing) == ("Write area.", (), window.view.nodes[0].id)
    assert pressed(window, "edit", entry, "Write ar")[1] == entry, "what was typed before the first edit"
    with gr.Blocks():
        assert Composer()._leave_edit(entry, window.request)[:2] == (TYPED, Entry(FILES))
    assert began(window, "Write volume.", entry)[:2] == (TYPED, Entry(FILES))


def test_another_branch_leaves_the_box_as_it_is(window: Window) -> None:
    _, entry, *_ = pressed(window, "edit", Entry(), "")
    began(window, "Write volume.", entry)
    window.answer()
    text, kept, *_ = pressed(window, "back", Entry(FILES))
    assert (text, kept) == (gr.skip(), gr.skip())
    _, edited, *_ = pressed(window, "edit", Entry(FILES))
    text, kept, *_ = pressed(window, "back", edited, "Write vol")
    assert (text, kept) == (f"Write vol\n\n{TYPED}", Entry(FILES)), "the edited prompt is not shown any more"


def test_an_edit_of_a_turn_that_is_shown_no_more_is_a_prompt_like_any(window: Window) -> None:
    _, entry, *_ = pressed(window, "edit", Entry())
    retried: Any = window.events.retry(window.request, SimpleNamespace(index=1), window.view, True, *GOOD)
    window.view = next(each for each in retried if isinstance(each, View))
    window.answer()
    began(window, "Write volume.", entry)
    window.answer()
    assert [node.turn.prompt for node in window.view.nodes] == ["Write area.", "Write volume."]


def test_what_was_typed_in_a_conversation_that_another_window_deleted_is_for_a_new_one(
    window: Window, history: History
) -> None:
    history.delete(window.view.chat)
    unsent = {None: ("Earlier.", Entry())}
    text, entry, *_ = window.events.new_chat(window.request, TYPED, Entry(FILES), window.view, unsent)
    assert (text, entry) == (f"{TYPED}\n\nEarlier.", Entry(FILES))


def test_undo_puts_the_prompt_before_what_was_typed(window: Window) -> None:
    event: Any = SimpleNamespace(index=0)
    text, entry, *_ = window.events.undo(event, window.view, True, TYPED, Entry(FILES), window.request)
    assert (text, entry) == (f"Write area.\n\n{TYPED}", Entry(FILES))


def test_an_earlier_prompt_can_be_copied_while_an_answer_is_written(window: Window) -> None:
    began(window, "Now rename it.")
    assert json.loads(pressed(window, "copy_prompt", Entry())[-1])["text"] == "Write area."
    with pytest.raises(gr.Error, match="still being written"):
        pressed(window, "edit", Entry())


def test_an_import_that_is_refused_stops_no_answer(window: Window, history: History) -> None:
    assert window.view.chat is not None
    whole = to_json(exchange_of("A chat", history.tree(window.view.chat), window.view.tip)).encode()
    with gr.Blocks():
        chats = ChatList(history)
    left: list[Any] = []
    with pytest.raises(gr.Error, match="not a valid JSON file"):
        chats.imported(whole[:-9], window.request, left.append)
    assert left == []
    assert chats.imported(whole, window.request, left.append).chat != window.view.chat
    assert left == [window.request]


def test_a_prompt_sent_right_after_new_is_answered_in_a_new_conversation(
    tmp_path: Path, pipeline: ScriptedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New waits for the end of the answer that it leaves, and the prompt is sent meanwhile."""
    pipeline.warm.set()
    port, both_asked, leaving = free_port(), threading.Event(), threading.Event()
    page = open_page(Assistant(pipeline, "scripted"), History(tmp_path / "history.sqlite"), "127.0.0.1", port)
    drop = page.assistant.drop

    def drop_late(visitor: str, patience_s: float = 0) -> None:
        leaving.set()
        both_asked.wait(30)
        drop(visitor, patience_s)

    monkeypatch.setattr(page.assistant, "drop", drop_late)
    try:
        wire = Wire(page, f"http://127.0.0.1:{port}")
        assert wire("ChatEvents.ask", "First.", None, None, True, *GOOD)
        first = wire.join("ChatEvents.answer", None, True)
        new = wire.join("ChatEvents.new_chat", "", None, None, None)
        assert leaving.wait(30)
        second = wire.join("ChatEvents.ask", "Second.", None, None, True, *GOOD)
        assert None not in (first, new, second)
        threading.Timer(0.5, both_asked.set).start()  # the time in which the prompt would overtake
        ended = list(wire.ends(first, new, second))
        assert ended.index(new) < ended.index(second)
        pipeline.gate.set()
        assert wire("ChatEvents.answer", None, True)
        kept = {chat.title: page.history.path(chat.id) for chat in page.history.chats()}
        assert {title: [node.turn.prompt for node in path] for title, path in kept.items()} == {
            "First.": ["First."], "Second.": ["Second."],
        }  # fmt: skip
        assert kept["Second."][0].turn.finish_reason == "stop"
    finally:
        both_asked.set()
        page.blocks.close(verbose=False)
        page.history.close()
