"""Kinds of values that settings and kept turns hold, and what makes a value from outside fit to be kept."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from outrider.pipelines import InvalidOption

DEEPEST = 16  # levels of lists and objects; a conversation has six
NAME = r"[a-z_]{1,40}"  # of a drafter or an end, which becomes a class in the page
LARGEST_WHOLE = 2**64 - 1


def storable(text: str) -> str:
    """The text without lone surrogates, which UTF-8 does not have, and so neither a file nor a page."""
    return text.encode("utf-8", "replace").decode("utf-8")


def text_of(value: object) -> str:
    """What a field for text holds. Raises InvalidOption for anything else."""
    if not isinstance(value, str):
        raise InvalidOption("This is no text: type some.")
    return storable(value)


def sound(value: Any, depth: int = DEEPEST) -> Any:
    """Plain values as JSON has them, with every text storable. Raises ValueError for what cannot be kept."""
    if isinstance(value, str):
        return storable(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        if not abs(value) <= (LARGEST_WHOLE if isinstance(value, int) else sys.float_info.max):
            raise ValueError("a number is too large or not finite")
        return value
    if depth == 0:
        raise ValueError(f"lists and objects are nested more than {DEEPEST} levels deep")
    if isinstance(value, Mapping):
        return {storable(str(name)): sound(part, depth - 1) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [sound(part, depth - 1) for part in value]
    raise ValueError(f"a {type(value).__name__} is not a JSON value")


def _cut(value: Any) -> Any:
    """A field for numbers takes 20.5 where 20 was meant."""
    return int(value) if isinstance(value, float) and math.isfinite(value) else value


Whole = Annotated[int, BeforeValidator(_cut), Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
