"""Turns and settings as plain values, and back."""

from __future__ import annotations

from hypothesis import given, settings

from outrider.app.chat.core.conversation import Turn
from outrider.app.chat.core.settings import Settings
from outrider.app.chat.store.record import settings_of, settings_record, turn_of, turn_record

from .turns import kept, turns


@given(turns)
@settings(max_examples=50)
def test_a_turn_comes_back_from_its_record(turn: Turn) -> None:
    assert turn_of(turn_record(turn)) == kept(turn)
    assert settings_of(settings_record(turn.settings)) == kept(turn).settings


def test_fractions_that_an_earlier_release_kept_can_be_read() -> None:
    record = {"prompt": "x", "settings": {"max_new_tokens": 20.5, "draft_tokens": 2.5}}
    assert turn_of(record).settings == Settings(max_new_tokens=20, draft_tokens=2)
