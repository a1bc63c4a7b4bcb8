"""Conversations as files, and back."""

from __future__ import annotations

import codecs
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.app.chat.core.conversation import File, Turn
from outrider.app.chat.store.record import BadRecord
from outrider.app.chat.store.transfer import BadImport, read_exchange, to_json, to_markdown
from outrider.pipelines import Span
from outrider.pipelines.engine.trace import TARGET

from .turns import turns


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


def test_a_file_that_went_through_windows_is_still_read() -> None:
    said = [Turn("Say\r\n\na", spans=(Span("b\r\nc\n", TARGET),), finish_reason="stop")]
    marked = codecs.BOM_UTF8 + to_markdown("Two lines", said).encode()
    exchange = read_exchange(marked)
    assert (exchange.title, [turn for _, turn in exchange.turns]) == ("Two lines", said)
    exported = to_markdown("Title", [replace(said[0], prompt="Say\na", spans=(Span("b\nc", TARGET),))]).encode()
    assert read_exchange(exported.replace(b"\n", b"\r\n")) == read_exchange(exported)
    whole = to_json(read_exchange(exported)).encode()
    assert read_exchange(codecs.BOM_UTF8 + whole) == read_exchange(whole)


def test_an_end_of_the_file_without_a_line_end_loses_nothing() -> None:
    said = [Turn("Hi", spans=(Span("The answer is 42", TARGET),), finish_reason="stop")]
    content = to_markdown("Title", said).rstrip("\n").encode()
    assert [turn for _, turn in read_exchange(content).turns] == said


def test_files_count_as_no_turns() -> None:
    turn = Turn("Hi", files=tuple(File(f"{i}.txt", "x") for i in range(5)), spans=(Span("Yes", TARGET),))
    assert len(read_exchange(to_markdown("Title", [turn] * 400).encode()).turns) == 400


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
