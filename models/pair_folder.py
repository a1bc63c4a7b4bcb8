"""pair.json: the origin of a pair, how it was made, the checks that it passed, and the hashes of its files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .digest import sha256

NAME = "pair.json"
FORMAT = 1
MADE_WITH = (
    "outrider", "openvino", "openvino-tokenizers", "openvino-genai", "optimum-intel", "nncf", "torch", "transformers",
)  # fmt: skip


def describe(folder: Path, models: Mapping[str, Any], made_with: Iterable[str] = MADE_WITH) -> dict[str, Any]:
    """The content of pair.json for the files in `folder`, without the checks."""
    return {
        "format": FORMAT,
        "models": models,
        "versions": {name: _version(name) for name in made_with},
        "files": {
            file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": sha256(file)}
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file != folder / NAME
        },
    }


def write(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Write pair.json."""
    text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
    (folder / NAME).write_text(text, encoding="utf-8", newline="\n")


def size(folder: Path) -> int:
    """Bytes of all files in a folder, including subfolders, as far as they can be read and none removes them."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike Path.rglob it goes on where a folder has vanished
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout that is not installed
        return None
