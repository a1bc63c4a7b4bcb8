"""What a window turns to is drawn after all that was drawn in it."""

from __future__ import annotations

import threading

import pytest

from outrider.app.chat.ui.drawing import Drawing

PATIENCE_S = 30.0


def test_a_window_that_turns_away_waits_for_what_is_still_drawn_in_it() -> None:
    drawing, drawn, may_draw = Drawing(), [], threading.Event()
    is_drawing = threading.Event()

    def draw() -> None:
        with drawing.by("one"):
            is_drawing.set()
            may_draw.wait(PATIENCE_S)
            drawn.append("late")

    event = threading.Thread(target=draw)
    event.start()
    is_drawing.wait(PATIENCE_S)
    drawing.leave("another", PATIENCE_S)  # which waits for nothing
    threading.Timer(0.2, may_draw.set).start()
    drawing.leave("one", PATIENCE_S)
    assert drawn == ["late"]
    event.join()
    drawing.leave("one", PATIENCE_S)


def test_nobody_waits_longer_than_was_said() -> None:
    drawing = Drawing()
    with drawing.by("one"):
        drawing.leave("one", 0.01)
        drawing.leave("one")


def test_a_window_that_turns_away_follows_no_more_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing, were_told = Drawing(), list[bool]()
    wait = drawing._changed.wait

    def leave_meanwhile(timeout: float | None) -> bool:
        threading.Thread(target=drawing.leave, args=("one",)).start()  # which can as soon as that waits
        were_told.append(wait(timeout))
        return were_told[-1]

    drawing.follow("one", 7)
    assert drawing.goes_on("one", 7, 0.0)
    monkeypatch.setattr(drawing._changed, "wait", leave_meanwhile)
    assert not drawing.goes_on("one", 8, PATIENCE_S)
    assert were_told == [], "nothing is waited for"
    assert not drawing.goes_on("one", 7, PATIENCE_S)
    assert not drawing.goes_on("one", 7, PATIENCE_S)
    assert were_told == [True], "it was waited for once, and not to the end"
