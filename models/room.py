"""Is there room on the disk?"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import NoRoom

FULL = 1 << 20  # bytes free, with which no writer can go on
SPARE = 64 << 20  # bytes: tokenizers, configuration, and what other programs write meanwhile


def require_room(folder: Path, needed: int, purpose: str) -> None:
    """Raises NoRoom unless the disk that `folder` is or will be on has `needed` bytes free, and some to spare."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed + SPARE:
        raise NoRoom(
            f"{purpose} needs about {in_words(needed + SPARE)} in {existing}, but {in_words(free)} are free: "
            "make room, or choose another disk."
        )


@contextmanager
def blaming_full_disk(folder: Path) -> Iterator[None]:
    """Turn an error into NoRoom where the disk of `folder` has filled up, which the writers themselves rarely say."""
    try:
        yield
    except Exception as error:
        free = shutil.disk_usage(folder).free
        if free < FULL or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            raise NoRoom(f"The disk of {folder.parent} is full ({in_words(free)} left): make room.") from error
        raise


def in_words(size: float) -> str:
    """`size` bytes for people to read: 1536000 is 1.5 MB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
