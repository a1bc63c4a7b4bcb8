"""Files that a command writes at its end."""

from __future__ import annotations

import os
from pathlib import Path

from outrider.pipelines import InvalidOption


def require_writable(path: Path, option: str) -> None:
    """Raises InvalidOption if the file that an option names cannot be written, before anything is measured for it."""
    try:
        is_there, has_place = path.exists(), not path.is_dir() and path.parent.is_dir()
    except OSError as error:  # this user may not look there, or the name is too long
        raise InvalidOption(f"{option} {path} cannot be written ({error.strerror}): give another file.") from error
    if not has_place:
        raise InvalidOption(f"{option} {path} cannot be written: give a file in a folder that is there.")
    if not os.access(path if is_there else path.parent, os.W_OK):
        raise InvalidOption(f"{option} {path} cannot be written (Permission denied): give another file.")


def write(path: Path, text: str, option: str) -> None:
    """Raises InvalidOption if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InvalidOption(f"{option} {path} cannot be written ({error.strerror}): give another file.") from error
