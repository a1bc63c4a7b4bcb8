"""The folder of uploaded files, and its limits."""

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

from ..store.transfer import LARGEST_IMPORT

MIB = 1 << 20


class TooMuch(OutriderError):
    """An upload that exceeds a limit. `status` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """one: bytes of one upload. together, files: bytes and number of all stored files. kept_s: seconds to keep one."""

    one: int = LARGEST_IMPORT + MIB  # a form is a little larger than the file in it
    together: int = 256 * MIB
    files: int = 500
    kept_s: float = 3600.0


class Uploads:
    """Checks the limits before each upload. All calls must come from one event loop."""

    def __init__(self, folder: Path, limits: UploadLimits) -> None:
        self.limits = limits
        self._folder = folder
        self._coming = 0  # bytes of the uploads in progress

    @asynccontextmanager
    async def room_for(self, num_bytes: int) -> AsyncIterator[None]:
        """Reserve room for an upload. Raises TooMuch if a limit is exceeded."""
        limits = self.limits
        if num_bytes > limits.one:
            raise TooMuch(f"The files are larger than {limits.one / MIB:g} MiB, the limit for one upload.", 413)
        self._coming += num_bytes
        try:
            num_files, stored = await asyncio.to_thread(self._clean)
            if num_files >= limits.files or stored + self._coming > limits.together:
                raise TooMuch("Too many files were uploaded: try again in an hour, or restart Outrider.", 507)
            yield
        finally:
            self._coming -= num_bytes

    def _clean(self) -> tuple[int, int]:
        """Remove old files, including those of broken uploads. Returns the number and bytes of the others."""
        num_files = num_bytes = 0
        for path in self._folder.rglob("*"):
            try:
                about = path.lstat()
                if not path.is_file():
                    continue
                if time.time() - about.st_mtime > self.limits.kept_s:
                    path.unlink()
                    continue
            except OSError:  # Gradio removes files too, and moves those that are complete
                continue
            num_files, num_bytes = num_files + 1, num_bytes + about.st_size
        return num_files, num_bytes


@functools.cache
def upload_folder() -> Path:
    """A folder for this process, which other users cannot read and which is removed when the process ends.

    Gradio reads its path from the environment, so there is one per process. Otherwise all programs that use Gradio
    would share a folder that every user can read.
    """
    within = os.environ.get("GRADIO_TEMP_DIR")
    if within is not None:
        Path(within).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="outrider-", dir=within)).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    return folder
