"""Whatever the controls of the page hold: no conversation is left that cannot be opened, stopped and deleted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.core.conversation import File, Turn
from outrider.app.chat.core.settings import Settings
from outrider.app.chat.store.history import History
from outrider.app.chat.ui import Page
from outrider.app.chat.ui.chat_events import ChatEvents
from outrider.app.chat.ui.composer import Entry
from outrider.app.chat.ui.panel import SettingsPanel
from outrider.app.chat.ui.view import View
from outrider.pipelines import InvalidOption
from outrider.pipelines.config import GenerationConfig

from ..chat.windows import GOOD, StrictPipeline, Window, Wire, request_of

HOSTILE = [
    None, True, False, -1, -0.0, 0.5, 2.5, 20.5, 1e308, -1e308, math.nan, math.inf, -math.inf, 2**31, 2**63, 2**64,
    10**400, -(10**400), "", "x", "1", "-1", "NaN", "\x00", "\ud800", "<img src=x>", "x" * 10_000, [], [1], {},
    {"a": 1},
]  # fmt: skip
hostile = st.sampled_from(HOSTILE) | st.integers() | st.floats() | st.text(st.characters(), max_size=9)


@pytest.fixture(scope="module")
def assistant() -> Assistant:
    pipeline = StrictPipeline()
    pipeline.gate.set()
    return Assistant(pipeline, "scripted")


def all_can_be_used(events: ChatEvents, history: History) -> None:
    for chat in history.chats():
        window = Window(events)
        window.open(chat.id)
        assert window.view.nodes
        assert not window.view.is_answering
        json.dumps(events.render(window.view, True, window.request), ensure_ascii=False).encode()
        window.ask("And now?", *GOOD)
        assert window.view.nodes[-1].turn.prompt == "And now?"
        assert window.view.nodes[-1].turn.finish_reason == "stop"
        events.stop(window.view, True, window.request)
        history.delete(chat.id)
    assert history.chats() == []


@given(st.lists(st.tuples(st.integers(0, len(GOOD)), hostile), min_size=1, max_size=3), st.booleans())
@settings(max_examples=80, deadline=None, print_blob=True)
def test_no_value_of_any_control_leaves_a_conversation_that_cannot_be_used(assistant, changes, later: bool) -> None:
    history = History(Path(":memory:"))
    events, values = ChatEvents(assistant, history), ["Write area.", *GOOD]
    window = Window(events)
    if later:
        window.ask(*values)
    for at, value in changes:
        values[at] = value
    window.ask(*values)
    assert all(node.turn.complete for node in window.view.nodes)
    all_can_be_used(events, history)
    history.close()


@pytest.mark.parametrize("at", range(len(GOOD)), ids=[field.name for field in fields(Settings)])
def test_settings_are_refused_in_words_or_are_such_as_the_engine_takes(at: int) -> None:
    for value in HOSTILE:
        values: list[Any] = [*GOOD]
        values[at] = value
        try:
            read = Settings.of(*values)
        except InvalidOption as error:
            told = str(error)
        else:
            told = "engine takes it"
            GenerationConfig(**read.seeded().options())
        assert 10 < len(told) < 200


@pytest.mark.parametrize("values", [[], GOOD[1:], [*GOOD, 1]], ids=["none", "one less", "one more"])
def test_a_wrong_number_of_controls_is_refused(values: list[Any]) -> None:
    with pytest.raises(InvalidOption):
        Settings.of(*values)


def test_a_preset_of_hostile_values_is_refused_or_can_be_chosen_and_deleted(assistant) -> None:
    history = History(Path(":memory:"))
    with gr.Blocks():
        panel = SettingsPanel(assistant, history)
    request = request_of("one")
    for value in HOSTILE:
        for at in range(len(GOOD) + 1):
            values: list[Any] = ["mine", *GOOD]
            values[at] = value
            try:
                panel._kept(request, *values)
            except gr.Error:
                assert history.preset_names() == []
                continue
            (name,) = history.preset_names()
            assert Settings.of(*panel._apply(name, "auto", request)) == history.preset(name)
            panel._dropped(name, request)
            assert history.preset_names() == []
    history.close()


@pytest.mark.parametrize("kept", HOSTILE, ids=lambda value: str(value)[:10])
def test_what_the_browser_keeps_is_taken_only_where_it_is_settings(assistant, kept) -> None:
    history = History(Path(":memory:"))
    with gr.Blocks():
        panel = SettingsPanel(assistant, history)
    for browser in (kept, [kept], [kept] * len(GOOD), {"auto": kept}):
        assert all(value == gr.skip() for value in panel._restored(browser, *GOOD))
    assert list(panel._restored(GOOD, *GOOD)) == GOOD
    history.close()


def test_an_answer_that_never_began_can_be_stopped_and_is_ended_when_opened(assistant) -> None:
    history = History(Path(":memory:"))
    events = ChatEvents(assistant, history)
    window = Window(events)
    begun = events.ask(window.request, "Write area.", Entry(), View(), True, *GOOD)
    window.view = next(part for part in begun if isinstance(part, View))
    with pytest.raises(gr.Error):
        events.ask(window.request, "Once more.", Entry(), window.view, True, *GOOD)
    stopped, *_ = events.stop(window.view, True, window.request)
    assert stopped.nodes[-1].turn.finish_reason == "cancelled"
    ((first, *_),) = events.answer(window.request, window.view, True)
    assert first == gr.skip(), "it comes too late"
    history.add_turn(stopped.chat, stopped.tip, Turn("Whoever asked is gone.", files=(File("a", "b"),)))
    window.open(stopped.chat)
    assert window.view.nodes[-1].turn.finish_reason == "cancelled"
    window.ask("And now?", *GOOD)
    assert window.view.nodes[-1].turn.finish_reason == "stop"
    history.close()


@pytest.fixture
def both(assistant) -> Iterator[tuple[Window, Window]]:
    """A window that has asked for an answer, and one that has opened its conversation; nothing is written yet."""
    history = History(Path(":memory:"))
    events = ChatEvents(assistant, history)
    one, other = Window(events), Window(events)
    begun = events.ask(one.request, "Write area.", Entry(), View(), True, *GOOD)
    one.view = next(part for part in begun if isinstance(part, View))
    other.open(one.view.chat)
    assert other.view.is_answering
    yield one, other
    history.close()


def test_a_window_sees_the_end_of_an_answer_that_ended_before_it_could_follow(both) -> None:
    one, other = both
    one.answer()
    *_, (view, *_) = other.events.follow(other.request, other.view, True)
    assert view.nodes[-1].turn.text == one.view.nodes[-1].turn.text
    assert not view.is_answering


def test_a_window_that_turns_away_before_it_could_follow_stays_where_it_went(both) -> None:
    one, other = both
    left = other.view
    other.events.leave_chat(other.request)
    one.answer()
    assert list(other.events.follow(other.request, left, True)) == [(gr.skip(),) * 4]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Page, str]]:
    from outrider.app.chat.launch import open_page

    from ..conftest import free_port

    pipeline = StrictPipeline()
    pipeline.gate.set()
    pipeline.warm.set()
    port = free_port()
    page = open_page(Assistant(pipeline, "scripted"), History(tmp_path / "history.sqlite"), "127.0.0.1", port)
    yield page, f"http://127.0.0.1:{port}"
    page.blocks.close(verbose=False)
    page.history.close()


def test_over_http_no_control_leaves_a_conversation_that_cannot_be_used(served) -> None:
    page, address = served
    refused = [(0, ["x"]), (1, "x"), (2, -1), (2, None), (7, -1), (10, {})]
    taken = [(0, "\ud800"), (7, 2.5), (8, 20.5), (9, 2.5)]
    for at, value in [*refused, *taken]:
        wire, values = Wire(page, address), ["Write area.", *GOOD]
        values[at] = value
        if wire("ChatEvents.ask", values[0], None, None, True, *values[1:]):
            assert wire("ChatEvents.answer", None, True)
    kept = page.history.chats()
    assert len(kept) == len(taken)
    for chat in kept:
        wire = Wire(page, address)
        assert wire("Page._refresh", None, "")
        assert wire("ChatEvents.open", chat.id, True, "", None, None, None)
        assert wire("ChatEvents.stop", None, True)
        assert wire("Deletion.connect.<locals>.ask", None)
        assert wire("ChatList.delete_pending", None, None)
    assert page.history.chats() == []
