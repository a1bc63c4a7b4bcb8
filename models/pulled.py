"""The pulled pairs in the user's data folder."""

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
from .errors import NotReadable, NotWritable, UnknownName
from .staging import NEW, Claim, staging_path

REMOVED = ".outrider-removed"  # suffix of a pair's folder during deletion


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pulled pair. `models` is from its pair.json; `problem` says why it is unusable, or is None."""

    name: str
    path: Path
    bytes: int
    models: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


def pairs_folder() -> Path:
    """The folder of pulled pairs."""
    return user_data_path("outrider", appauthor=False) / "pairs"


def pulled_pairs(folder: Path) -> list[Pulled]:
    """The complete pairs in `folder`, sorted by name; none where there is no folder yet. Raises NotReadable."""
    return [_pulled(path) for path in folders_in(folder) if not path.name.startswith(".")]


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder of pairs, sorted; none where there is no such folder yet. Raises NotReadable."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise NotReadable(
            f"The folder of pairs, {folder}, cannot be read ({error}): correct its permissions, or move away "
            "what is in its place."
        ) from error


def unfinished(folder: Path) -> dict[str, int]:
    """Bytes of interrupted pulls, by name. Pulling the name again resumes them. Raises NotReadable."""
    return _hidden(folder, NEW)


def half_removed(folder: Path) -> dict[str, int]:
    """Bytes that interrupted removals have left, by name. Removing the name again deletes them. Raises NotReadable."""
    return _hidden(folder, REMOVED)


def find_pair(text: str, folder: Path | None = None) -> Path:
    """The folder for a path or for the name of a pulled pair. An existing path takes precedence.

    A path that does not exist is returned as it is. Raises NotReadable, and UnknownName for a name that is not that of
    a pulled pair.
    """
    try:
        path = Path(text).expanduser()
        if path.exists() or not _is_name(text):
            return path
    except OSError as error:
        raise UnknownName(f"No pair can be called {text}: {error.strerror}.") from error
    except RuntimeError as error:  # of expanduser
        raise UnknownName(f"There is no folder {text}: no user of that name has a home folder here.") from error
    folder = folder or pairs_folder()
    if folders_in(folder) and (folder / text).is_dir():
        return folder / text
    if text in Catalogue.shipped().names:
        raise UnknownName(f"{text} is not pulled yet: run `outrider models pull {text}`.")
    raise UnknownName(
        f"There is no folder {text} and no pair of that name: give a folder that `outrider export` made, or one of the "
        "names in `outrider models list`."
    )


def remove(name: str, folder: Path) -> None:
    """Delete a pulled pair, and what an interrupted pull or removal of it has left. The pair vanishes at once, or
    stays intact.

    Raises UnknownName, NotReadable, NotWritable, InProgress.
    """
    check_removable(name, folder)
    with Claim(folder.absolute() / name):
        doomed = _doomed(folder, name)
        try:
            _delete(doomed)  # an earlier removal was interrupted
            if (folder / name).exists():
                (folder / name).rename(doomed)
            _delete(doomed)
            _delete(staging_path(folder / name))
        except OSError as error:
            raise NotWritable(
                f"{folder / name} cannot be removed ({error}): end the programs that use it, and try again."
            ) from error


def check_removable(name: str, folder: Path) -> None:
    """Raises UnknownName unless `name` is a pair or an unfinished or half-removed one directly in `folder`, and
    NotReadable."""
    path = folder / name
    if not _is_name(name) or not _is_anything(path):
        known = ", ".join(pair.name for pair in pulled_pairs(folder)) or "none"
        raise UnknownName(f"{name!r} is not a pulled pair, so nothing is removed. Pulled pairs: {known}.")
    if path.is_symlink():
        raise UnknownName(f"{path} is a link to {path.readlink()}, so nothing is removed: remove the link itself.")


def _is_anything(path: Path) -> bool:
    places = (path, staging_path(path), _doomed(path.parent, path.name))
    try:
        return any(each.is_dir() for each in places)
    except OSError:  # the name is too long
        return False


def _hidden(folder: Path, suffix: str) -> dict[str, int]:
    """Bytes in the hidden folders with this suffix, by the name of their pairs; none of empty ones."""
    found = [path for path in folders_in(folder) if path.name.startswith(".") and path.name.endswith(suffix)]
    sizes = {path.name[1 : -len(suffix)]: pair_folder.size(path) for path in found}
    return {name: size for name, size in sizes.items() if size}


def _doomed(folder: Path, name: str) -> Path:
    return folder / f".{name}{REMOVED}"


def _is_name(text: str) -> bool:
    return bool(text) and not text.startswith(".") and Path(text).name == text


def _pulled(path: Path) -> Pulled:
    size = pair_folder.size(path)
    try:
        return Pulled(path.name, path, size, Pair.open(path).metadata.get("models", {}))
    except (BrokenPair, OSError) as error:  # or it is another user's
        return Pulled(path.name, path, size, problem=str(error))


def _delete(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
