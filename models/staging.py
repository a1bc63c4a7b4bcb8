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

from .errors import InProgress, NotWritable, OutputExists

MARK = "pair.json"  # without it, nothing at the output path is ever replaced


def staging_path(out: Path) -> Path:
    """Where what will be at `out` is built."""
    return out.with_name(f".{out.name}.outrider-new")


class Claim:
    """The right to change what is at a path, of one process at a time. The system ends it when the process dies."""

    def __init__(self, out: Path) -> None:
        owner = str(getattr(os, "getuid", int)())  # a shared temporary folder may not let others open our file
        key = hashlib.sha256(owner.encode() + os.fsencode(out)).hexdigest()[:16]
        self._out = out
        self._lock = FileLock(Path(tempfile.gettempdir()) / f"outrider-{key}.lock", mode=0o666)

    def __enter__(self) -> Claim:
        """Raises InProgress."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise InProgress(
                f"Another process is writing to {self._out}: wait for it, or choose another place."
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the lock's file away, then release it: nobody can lock it in between and lose it."""
        with suppress(OSError):  # Windows keeps a file that is open
            Path(self._lock.lock_file).unlink()
        self._lock.release()


class Staging:
    """Build in `path`, beside `out` and on its disk, then `publish()` by renaming; unpublished, all is taken away.

    A process that was killed leaves nothing at `out` but perhaps a hidden folder beside it, which the next one removes.
    `resume`: what was built so far stays for the next attempt instead.
    Raises OutputExists, NotWritable, InProgress.
    """

    def __init__(self, out: Path, force: bool = False, resume: bool = False) -> None:
        self.out = out.absolute()
        self.path = staging_path(self.out)
        self._replaced = self.path.with_name(f".{self.out.name}.outrider-old")
        self._force = force
        self._resume = resume
        self._claim = Claim(self.out)

    def __enter__(self) -> Staging:
        self._claim.__enter__()
        try:
            self._clean()
            self._require_free()
            self.path.mkdir(parents=True, exist_ok=self._resume)
        except OSError as error:
            self._claim.__exit__(None, None, None)
            raise NotWritable(f"Nothing can be written beside {self.out} ({error}): choose another place.") from error
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
        """Give the folder its name. What was there before is removed only now."""
        if self.out.exists():
            self.out.rename(self._replaced)
        self.path.rename(self.out)

    def _clean(self) -> None:
        if self._replaced.exists() and not self.out.exists():  # stopped between the two renames
            self._replaced.rename(self.out)
        for leftover in (self._replaced,) if self._resume else (self.path, self._replaced):
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
