"""Checkpoints of architectures that transformers does not know but that compute the same as one that it knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from .checkpoint import RENAMED, Checkpoint


@contextmanager
def known_form(checkpoint: Checkpoint) -> Iterator[Path]:
    """A folder that transformers can load the checkpoint from, without code of its own."""
    if checkpoint.architecture not in RENAMED:
        yield checkpoint.folder
        return
    architecture, model_type = RENAMED[checkpoint.architecture]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in checkpoint.folder.iterdir():
            if file.suffix != ".py":
                (folder / file.name).symlink_to(file.resolve())
        (folder / "config.json").unlink()
        config = checkpoint.config()
        config.pop("auto_map", None)
        config |= {"architectures": [architecture], "model_type": model_type}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield folder
