"""Conversion of turns and settings to and from JSON values, for the history file and for exports."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from outrider.pipelines import InvalidOption, OutriderError

from ..core.conversation import Turn
from ..core.settings import Settings
from ..core.values import sound

T = TypeVar("T")
_TURN = TypeAdapter(Turn)


class BadRecord(OutriderError):
    """A stored or imported value of the wrong form."""


def turn_record(turn: Turn) -> dict[str, Any]:
    """The turn as JSON values, but with tuples."""
    record: dict[str, Any] = _TURN.dump_python(turn, by_alias=True)
    return record


def turn_of(record: Any) -> Turn:
    """The turn that `turn_record` described. Raises BadRecord."""
    return validated(_TURN, record)


def settings_record(settings: Settings) -> dict[str, Any]:
    return asdict(settings)


def settings_of(record: Any) -> Settings:
    """The settings that `settings_record` described; what is missing has its default. Raises BadRecord."""
    try:
        return Settings.read(record)
    except InvalidOption as error:
        raise BadRecord(str(error)) from error


def validated(adapter: TypeAdapter[T], record: Any) -> T:
    """JSON values, read with the adapter. Raises BadRecord, which names the field that is wrong."""
    try:
        # As JSON, since strict mode refuses Python lists for tuples. `sound` refuses what pydantic accepts and UTF-8,
        # JSON or the page do not: lone surrogates, infinity, huge numbers, deep nesting.
        return adapter.validate_json(json.dumps(sound(record)), strict=True)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        fault = ": ".join(filter(None, [place, first["msg"].removeprefix("Value error, ")]))
        raise BadRecord(f"A value is missing or wrong: {fault}.") from error
    except ValueError as error:
        raise BadRecord(f"A value cannot be stored: {error}.") from error
