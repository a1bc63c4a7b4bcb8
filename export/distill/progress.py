"""Progress bars on standard error."""

from __future__ import annotations

import sys

from tqdm import tqdm

RARELY = 10.0  # seconds between two states of a bar in a file or a pipe, where all of them remain


def progress_bar(description: str, total: int, unit: str, done: int = 0) -> tqdm:
    """A bar of which `done` of `total` are done."""
    often = {} if sys.stderr.isatty() else {"mininterval": RARELY, "maxinterval": RARELY}
    return tqdm(desc=description, total=total, unit=unit, initial=done, **often)
