"""Where files lie that the browser sends, and how many may."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from outrider.pipelines import OutriderError

MIB = 1 << 20


class TooMuch(OutriderError):
    """A file that is not taken; the `status` is the one of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """one: bytes of a request that brings files. together, files: of all that lie there. kept_s: how long they do."""

    one: int = 32 * MIB
    together: int = 256 * MIB
    files: int = 500
    kept_s: float = 3600.0


class Uploads:
    """Counts what lies in the folder before anything is added to it. All calls come from one event loop."""

    def __init__(self, folder: Path, limits: UploadLimits) -> None:
        self.limits = limits
        self._folder = folder
        self._coming = 0  # bytes of requests that are being read

    @asynccontextmanager
    async def room_for(self, num_bytes: int) -> AsyncIterator[None]:
        """Raises TooMuch where there is none."""
        limits = self.limits
        if num_bytes > limits.one:
            raise TooMuch(f"The files are larger than {limits.one / MIB:g} MiB, the most that is taken.", 413)
        self._coming += num_bytes
        try:
            num_files, stored = await asyncio.to_thread(self._clean)
            if num_files >= limits.files or stored + self._coming > limits.together:
                raise TooMuch("Too many files were uploaded: try again in an hour, or start Outrider again.", 507)
            yield
        finally:
            self._coming -= num_bytes

    def _clean(self) -> tuple[int, int]:
        """Remove what is too old, also what a broken upload has left; the number and bytes of the others."""
        num_files = num_bytes = 0
        for path in self._folder.rglob("*"):
            try:
                about = path.lstat()
                if not path.is_file():
                    continue
                if time.time() - about.st_mtime > self.limits.kept_s:
                    path.unlink()
                    continue
            except OSError:  # Gradio cleans too, and moves what is complete
                continue
            num_files, num_bytes = num_files + 1, num_bytes + about.st_size
        return num_files, num_bytes


@functools.cache
def upload_folder() -> Path:
    """A folder for this process alone, which other users cannot read and which goes when it ends.

    Gradio looks for it in the environment again and again, so one process has one; without this, all programs that
    use Gradio would share one that every user can look into.
    """
    within = os.environ.get("GRADIO_TEMP_DIR")
    if within is not None:
        Path(within).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="outrider-", dir=within)).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    return folder
