"""Staging: a folder that appears at its path only when it is complete."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from .errors import InProgress, NotWritable, OutputExists

MARK = "pair.json"  # only a folder with this file is ever replaced
NEW = ".outrider-new"  # suffix of a folder that is built by what can be resumed


def staging_path(out: Path) -> Path:
    """The folder in which the content of `out` is built by what can be resumed."""
    return out.with_name(f".{out.name}{NEW}")


@contextmanager
def blaming_unwritable(folder: Path) -> Iterator[None]:
    """Convert errors about files into NotWritable while `folder` is written to."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # it is about something else, such as a pipe that was closed
            raise
        raise NotWritable(
            f"Nothing can be written to {folder} ({error}): correct its permissions or remove it, and try again."
        ) from error


class Claim:
    """A lock between processes on changing a path. The system releases it when the process dies."""

    def __init__(self, out: Path) -> None:
        owner = str(getattr(os, "getuid", int)())  # other users may be unable to open our file in a shared folder
        place = Path(os.path.realpath(out.parent), out.name)  # one for all ways to write it
        key = hashlib.sha256(owner.encode() + os.fsencode(place)).hexdigest()[:16]
        self._out = out
        self._lock = FileLock(Path(tempfile.gettempdir()) / f"outrider-{key}.lock", mode=0o666)

    def __enter__(self) -> Claim:
        """Raises InProgress."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise InProgress(
                f"Another process is writing to {self._out}: wait for it, or choose another path."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the lock's file before releasing it, so that nobody locks a file that is about to be removed."""
        with suppress(OSError):  # Windows keeps a file that is open
            Path(self._lock.lock_file).unlink()
        self._lock.release()


class Staging:
    """Builds a folder in `path`, which is next to `out`, and moves it to `out` with `publish()`.

    Without `publish()`, the folder is removed on exit. A killed process leaves it behind, and the next one removes it.
    force: replace a pair that is at `out`.
    resume: keep an unpublished folder, for the next attempt to resume. Only those that resume use or remove it.

    Raises OutputExists, NotWritable, InProgress on entry.
    """

    def __init__(self, out: Path, force: bool = False, resume: bool = False) -> None:
        self.out = out.absolute()
        self._unresumed = self.out.with_name(f".{self.out.name}.outrider-export")
        self.path = staging_path(self.out) if resume else self._unresumed
        self._replaced = self.out.with_name(f".{self.out.name}.outrider-old")
        self._force = force
        self._resume = resume
        self._kept = False
        self._claim = Claim(self.out)

    def __enter__(self) -> Staging:
        self._claim.__enter__()
        try:
            self._clean()
            self._require_free()
            self.path.mkdir(parents=True, exist_ok=self._resume)
        except OSError as error:
            self._claim.__exit__(None, None, None)
            raise NotWritable(f"Nothing can be written next to {self.out} ({error}): choose another place.") from error
        except BaseException:
            self._claim.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._clean()
        finally:
            self._claim.__exit__(kind, error, trace)

    def publish(self) -> None:
        """Move the folder to `out`. Only now is the pair that it replaces removed.

        Raises OutputExists if something has appeared at `out` since entry; the folder is kept then.
        """
        try:
            self._require_free()
        except OutputExists as error:
            self._kept = True
            raise OutputExists(
                f"{self.out} has appeared since this began, and is not replaced. What was made is in {self.path}: move "
                "it to another place before you try again."
            ) from error
        if self.out.exists():
            self.out.rename(self._replaced)
        self.path.rename(self.out)

    def _clean(self) -> None:
        if self._replaced.exists() and not self.out.exists():  # stopped between the two renames
            self._replaced.rename(self.out)
        for leftover in (self._replaced,) if self._kept else (self._replaced, self._unresumed):
            if leftover.exists():
                shutil.rmtree(leftover)

    def _require_free(self) -> None:
        if not os.path.lexists(self.out):
            return
        is_pair = not self.out.is_symlink() and (self.out / MARK).is_file()
        if not self._force:
            remedy = ", or replace it with --force" if is_pair and not self._resume else ""
            raise OutputExists(f"{self.out} exists: choose another output folder{remedy}.")
        if not is_pair:
            raise OutputExists(
                f"{self.out} is not a pair folder (no {MARK} in it), so it is not replaced: move it away."
            )
