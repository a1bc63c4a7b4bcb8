"""Free space on disks."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import NoRoom

FULL = 1 << 20  # bytes; with less free space, the disk counts as full
SPARE = 64 << 20  # bytes to spare, for small files and other programs


def require_room(folder: Path, needed: int, purpose: str) -> None:
    """Raises NoRoom unless the disk of `folder`, which need not exist, has `needed` bytes free and SPARE more."""
    existing = _existing(folder)
    free = shutil.disk_usage(existing).free
    if free < needed + SPARE:
        raise NoRoom(
            f"{purpose} needs about {in_words(needed + SPARE)} in {existing}, but {in_words(free)} are free: "
            "make room, or choose another disk."
        )


@contextmanager
def blaming_full_disk(folder: Path) -> Iterator[None]:
    """Convert errors into NoRoom if the disk of `folder`, which need not exist, is full, which writers rarely report
    themselves."""
    try:
        yield
    except Exception as error:
        free = shutil.disk_usage(_existing(folder)).free
        if free < FULL or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            raise NoRoom(f"The disk of {folder.parent} is full ({in_words(free)} left): make room.") from error
        raise


def _existing(folder: Path) -> Path:
    return next((parent for parent in (folder, *folder.parents) if parent.exists()), folder)  # or its disk is gone


def in_words(size: float) -> str:
    """`size` bytes in readable form: 1536000 becomes '1.54 MB'."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:  # from where three digits would be rounded to 1e+03
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
