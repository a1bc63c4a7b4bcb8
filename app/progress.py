"""Progress where nobody watches a bar, as in a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable

RARELY_S = 30.0


def rarely(say: Callable[[str], None]) -> Callable[[str], None]:
    """Says a line only if the last one, or the beginning, is RARELY_S seconds ago: all of them remain."""
    told = time.monotonic()

    def say_rarely(line: str) -> None:
        nonlocal told
        if time.monotonic() - told >= RARELY_S:
            say(line)
            told = time.monotonic()

    return say_rarely
