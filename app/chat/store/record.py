"""Turns and settings as plain values, for the history file and for export, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from outrider.pipelines import InvalidOption, OutriderError

from ..core.conversation import Turn
from ..core.settings import Settings
from ..core.values import sound


class BadRecord(OutriderError):
    """A stored or imported turn that does not have the form of one."""


def turn_record(turn: Turn) -> dict[str, Any]:
    """All of a turn, as plain values."""
    record: dict[str, Any] = _turns().dump_python(turn, by_alias=True)
    return record


def settings_record(settings: Settings) -> dict[str, Any]:
    return asdict(settings)


def turn_of(record: Any) -> Turn:
    """The turn that `turn_record` described. Raises BadRecord."""
    if not isinstance(record, Mapping):
        raise BadRecord(f"{_short(record)} is no turn: give an object with a prompt.")
    try:
        return _turns().validate_json(json.dumps(sound(record)), strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise BadRecord(
            f"A turn lacks a value or has one of the wrong kind: {_short(place)} ({first['msg']})."
        ) from error
    except ValueError as error:
        raise BadRecord(f"A turn holds what cannot be kept: {error}.") from error


def settings_of(record: Any) -> Settings:
    """The settings that `settings_record` described; what is not named keeps its default. Raises BadRecord."""
    try:
        return Settings.read(record)
    except InvalidOption as error:
        raise BadRecord(str(error)) from error


@cache
def _turns() -> TypeAdapter[Turn]:
    return TypeAdapter(Turn)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else f"A {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
