"""Is there room on the disk?"""

from __future__ import annotations

import shutil
from pathlib import Path

from .errors import NoRoom

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


def in_words(size: float) -> str:
    """`size` bytes for people to read: 1536000 is 1.5 MB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
