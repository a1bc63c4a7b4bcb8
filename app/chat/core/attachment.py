"""Text files that are attached to a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from outrider.pipelines import OutriderError

from .conversation import File

LARGEST_TOGETHER = 256_000  # bytes of all files of one prompt


class BadAttachment(OutriderError):
    """A file that cannot be attached."""


def read_attachments(paths: Iterable[str | Path], others: Iterable[File] = ()) -> tuple[File, ...]:
    """`others`, which were read earlier, and then the files at `paths`. Raises BadAttachment."""
    files = list(others)
    room = LARGEST_TOGETHER - sum(len(file.text.encode("utf-8", "replace")) for file in files)
    for path in map(Path, paths):
        try:
            size = path.stat().st_size
            if size > room:
                raise BadAttachment(
                    f"{path.name} has {size:,} bytes, but only {room:,} of the {LARGEST_TOGETHER:,} for all files "
                    "are left: attach less, or paste the part that matters."
                )
            content = path.read_bytes()
        except OSError as error:
            raise BadAttachment(f"{path.name} cannot be read ({error.strerror}): attach it again.") from error
        room -= size
        files.append(File(path.name, _text_of(content, path.name)))
    return tuple(files)


def _text_of(content: bytes, name: str) -> str:
    if b"\x00" in content:
        raise BadAttachment(f"{name} isn't a text file: attach one that is.")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BadAttachment(
            f"{name} isn't UTF-8 text (byte {error.start:,}): save it as UTF-8 and attach it again."
        ) from error
