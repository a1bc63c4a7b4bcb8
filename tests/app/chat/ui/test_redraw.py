"""What grows is drawn at once where it must be seen, and otherwise not too often."""

from __future__ import annotations

from types import SimpleNamespace

from outrider.app.chat.ui import redraw
from outrider.app.chat.ui.redraw import REDRAW_S, Redraw


def test_between_two_drawings_lies_a_while_unless_one_must_be_seen_at_once(monkeypatch) -> None:
    now = 0.0
    monkeypatch.setattr(redraw, "time", SimpleNamespace(monotonic=lambda: now))  # for this module alone
    pace = Redraw()
    assert pace.is_due(), "the first"
    now = 0.9 * REDRAW_S
    assert not pace.is_due()
    assert pace.is_due(at_once=True)
    now = 1.8 * REDRAW_S
    assert not pace.is_due(), "counted from the last that was drawn"
    now = 2.0 * REDRAW_S
    assert pace.is_due()
