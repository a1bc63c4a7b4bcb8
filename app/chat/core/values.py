"""The types of the values in settings and stored turns, and the cleaning of values from outside."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from outrider.pipelines import InvalidOption

DEEPEST = 16  # levels of nested lists and objects; an export has five
NAME = r"[a-z_]{1,40}"  # of a drafter or a finish reason, which become CSS classes
LARGEST_WHOLE = 2**64 - 1


def storable(text: str) -> str:
    """The text with lone surrogates replaced, since UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def text_of(value: object) -> str:
    """The value of a text field. Raises InvalidOption if it is not a string."""
    if not isinstance(value, str):
        raise InvalidOption("This is not text: type some.")
    return storable(value)


def sound(value: Any, depth: int = DEEPEST) -> Any:
    """A JSON value with every text made storable. Raises ValueError for values that cannot be stored."""
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
    """Number fields of the page may send 20.5 or 20.0 for 20."""
    return int(value) if isinstance(value, float) and math.isfinite(value) else value


Whole = Annotated[int, BeforeValidator(_cut), Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
