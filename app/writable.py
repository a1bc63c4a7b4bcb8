"""Files that a command writes at its end."""

from __future__ import annotations

from pathlib import Path

from outrider.pipelines import InvalidOption


def require_writable(path: Path, option: str) -> None:
    """Raises InvalidOption if the file that an option names cannot be written, before anything is measured for it."""
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidOption(f"{option} {path} cannot be written: give a file in a folder that is there.")


def write(path: Path, text: str, option: str) -> None:
    """Raises InvalidOption if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InvalidOption(f"{option} {path} cannot be written ({error.strerror}): give another file.") from error
