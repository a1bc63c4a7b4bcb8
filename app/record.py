"""Turns as JSON objects, for the history file and for export, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from outrider.pipelines import MODES, OutriderError, Span, Statistics

from .conversation import File, Turn
from .receipt import Receipt
from .saving import Saving
from .settings import Settings

T = TypeVar("T")
ABSENT = frozenset({"ttft_s", "tokens_per_s", "differs_at"})  # figures that an answer may not have


class BadRecord(OutriderError):
    """A stored or imported turn that does not have the form of one."""


def turn_record(turn: Turn) -> dict[str, Any]:
    """All of a turn, as plain values."""
    return asdict(turn)


def settings_record(settings: Settings) -> dict[str, Any]:
    return asdict(settings)


def turn_of(record: Any) -> Turn:
    """The turn that `turn_record` described. Raises BadRecord."""
    if not isinstance(record, Mapping):
        raise BadRecord(f"{_short(record)} is no turn: give an object with a prompt.")
    try:
        return Turn(
            prompt=_text(record["prompt"]),
            settings=settings_of(record.get("settings", {})),
            files=tuple(File(_text(file["name"]), _text(file["text"])) for file in record.get("files", ())),
            model=_text(record.get("model", "")),
            spans=tuple(Span(_text(span["text"]), _name(span["source"])) for span in record.get("spans", ())),
            token_ids=tuple(_whole(token) for token in record.get("token_ids", ())),
            finish_reason=_optional(_name, record.get("finish_reason")),
            stats=_optional(lambda value: _filled(Statistics, value), record.get("stats")),
            saving=_optional(_saving, record.get("saving")),
            receipt=_optional(lambda value: _filled(Receipt, value), record.get("receipt")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRecord(f"A turn lacks a value or has one of the wrong kind ({error!r}): {_short(record)}") from error


def settings_of(record: Any) -> Settings:
    """The settings that `settings_record` described; what is not named keeps its default. Raises BadRecord."""
    defaults = Settings()
    try:
        unknown = set(record) - {field.name for field in fields(Settings)}
        values = {name: _like(getattr(defaults, name), value) for name, value in record.items() if name not in unknown}
    except (TypeError, ValueError, AttributeError) as error:
        raise BadRecord(f"These are no settings ({error}): {_short(record)}") from error
    if unknown:
        raise BadRecord(f"Unknown settings: {', '.join(sorted(map(str, unknown)))}.")
    settings = Settings(**values)
    if settings.mode not in MODES:
        raise BadRecord(f"mode={settings.mode!r} is not known: give one of {', '.join(MODES)}.")
    return settings


def _like(default: Any, value: Any) -> Any:
    if isinstance(default, str):
        return _text(value)
    if value is None and default == 0:
        return None
    return float(_number(value)) if isinstance(default, float) else _whole(value)


def _filled(kind: Callable[..., T], record: Mapping[str, Any]) -> T:
    for name, value in record.items():
        if isinstance(value, Mapping):
            for drafter, count in value.items():
                _name(drafter)
                _number(count)
        elif value is not None or name not in ABSENT:
            _number(value)
    return kind(**record)


def _saving(record: Mapping[str, Any]) -> Saving:
    passes, took = (
        {_name(name): float(_number(value)) for name, value in record[field].items()}
        for field in ("plain_passes", "took_ms")
    )
    if passes.keys() != took.keys():
        raise ValueError("plain_passes and took_ms are of other drafters")
    spread_ms = float(_number(record.get("spread_ms", 0.0)))
    return Saving(float(_number(record["plain_ms"])), passes, took, spread_ms)


def _optional(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z_]+", value):
        raise ValueError(f"{value!r} is no name")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no whole number")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
