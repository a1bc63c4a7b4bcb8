"""The pairs that were pulled, in the user's data folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from outrider.pipelines.errors import BrokenPair
from outrider.pipelines.model.pair import Pair

from . import pair_folder
from .catalogue import Catalogue
from .errors import NotWritable, UnknownName
from .staging import Claim, staging_path

REMOVED = ".outrider-removed"  # the end of what a pair is called while it is deleted


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pair in the folder: `models` is that of its pair.json, `problem` says why it cannot be used, if so."""

    name: str
    path: Path
    bytes: int
    models: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


def pairs_folder() -> Path:
    """Where pulled pairs are kept."""
    return user_data_path("outrider", appauthor=False) / "pairs"


def pulled_pairs(folder: Path) -> list[Pulled]:
    """The pairs in `folder`, by name. One that is not complete yet is not among them."""
    if not folder.is_dir():
        return []
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [_pulled(path) for path in found]


def unfinished(folder: Path, name: str) -> int:
    """Bytes that an interrupted pull of `name` has left, with which the next one goes on."""
    path = staging_path(folder / name)
    return pair_folder.size(path) if path.is_dir() else 0


def find_pair(text: str, folder: Path | None = None) -> Path:
    """The folder that `text` names: a path, or the name of a pulled pair. A folder that is there comes first.

    Raises UnknownName for a name of no pair. A path to nothing is returned as it is.
    """
    path = Path(text).expanduser()
    if path.exists() or not _is_name(text):
        return path
    named = (folder or pairs_folder()) / text
    if named.is_dir():
        return named
    if text in Catalogue.shipped().names:
        raise UnknownName(f"{text} was not pulled yet: `outrider models pull {text}`.")
    raise UnknownName(
        f"There is no folder {text} and no pair of that name: give a folder that `outrider export` made, or one of the "
        "names in `outrider models list`."
    )


def remove(name: str, folder: Path) -> None:
    """Delete a pulled pair, and what an interrupted pull has left of it. It is gone at once, or there as it was.

    Raises UnknownName, NotWritable, InProgress.
    """
    check_removable(name, folder)
    with Claim(folder.absolute() / name):
        doomed = folder / f".{name}{REMOVED}"
        try:
            _delete(doomed)  # an earlier removal was interrupted
            if (folder / name).exists():
                (folder / name).rename(doomed)
            _delete(doomed)
            _delete(staging_path(folder / name))
        except OSError as error:
            raise NotWritable(
                f"{folder / name} cannot be removed ({error}): end what uses it, and try again."
            ) from error


def check_removable(name: str, folder: Path) -> None:
    """Raises UnknownName for what is not a pair, or the beginning of one, directly in `folder`."""
    path = folder / name
    if not _is_name(name) or path.is_symlink() or not (path.is_dir() or staging_path(path).is_dir()):
        known = ", ".join(pair.name for pair in pulled_pairs(folder)) or "none"
        raise UnknownName(f"{name!r} is no pulled pair, so nothing is removed. Pulled are: {known}.")


def _is_name(text: str) -> bool:
    return bool(text) and not text.startswith(".") and Path(text).name == text


def _pulled(path: Path) -> Pulled:
    size = pair_folder.size(path)
    try:
        return Pulled(path.name, path, size, Pair.open(path).metadata.get("models", {}))
    except BrokenPair as error:
        return Pulled(path.name, path, size, problem=str(error))


def _delete(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
