"""Staging: a folder that takes its place only when it is complete."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from .errors import ExportInProgress, NotWritable, OutputExists

MARK = "pair.json"  # without it, nothing at the output path is ever replaced


class Staging:
    """Build in `path`, beside `out` and on its disk, then `publish()` by renaming; unpublished, all is taken away.

    An export that was killed leaves nothing at `out` but perhaps a hidden folder beside it, which the next one removes.
    Raises OutputExists, NotWritable, ExportInProgress.
    """

    def __init__(self, out: Path, force: bool = False) -> None:
        self.out = out.absolute()
        self.path = self.out.with_name(f".{out.absolute().name}.outrider-new")
        self._replaced = self.path.with_name(f".{self.out.name}.outrider-old")
        self._force = force
        owner = str(getattr(os, "getuid", int)())  # a shared temporary folder may not let others open our file
        key = hashlib.sha256(owner.encode() + os.fsencode(self.out)).hexdigest()[:16]
        self._lock = FileLock(Path(tempfile.gettempdir()) / f"outrider-export-{key}.lock", mode=0o666)

    def __enter__(self) -> Staging:
        try:
            self._lock.acquire(timeout=0)  # the system releases it when the process dies
        except Timeout as error:
            raise ExportInProgress(
                f"Another export is writing to {self.out}: wait for it, or choose another."
            ) from error
        try:
            self._clean()
            self._require_free()
            self.path.mkdir(parents=True)
        except OSError as error:
            self._unlock()
            raise NotWritable(f"Nothing can be written beside {self.out} ({error}): choose another place.") from error
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._clean()
        finally:
            self._unlock()

    def publish(self) -> None:
        """Give the folder its name. What was there before is removed only now."""
        if self.out.exists():
            self.out.rename(self._replaced)
        self.path.rename(self.out)

    def _unlock(self) -> None:
        """Release the lock and take its file away: first, so that nobody can lock it in between and lose it."""
        with suppress(OSError):  # Windows keeps a file that is open
            Path(self._lock.lock_file).unlink()
        self._lock.release()

    def _clean(self) -> None:
        if self._replaced.exists() and not self.out.exists():  # stopped between the two renames
            self._replaced.rename(self.out)
        for leftover in (self.path, self._replaced):
            if leftover.exists():
                shutil.rmtree(leftover)

    def _require_free(self) -> None:
        if not os.path.lexists(self.out):
            return
        if not self._force:
            raise OutputExists(f"{self.out} exists: choose another output folder, or replace it with --force.")
        if self.out.is_symlink() or not (self.out / MARK).is_file():
            raise OutputExists(
                f"{self.out} is not a pair folder (no {MARK} in it), so it is not replaced: move it away."
            )
