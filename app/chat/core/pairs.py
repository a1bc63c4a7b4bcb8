"""The pairs that can be chosen on the page: those in a folder, and the one that comes with Outrider."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.models import embedded_pair
from outrider.models.pulled import folders_in
from outrider.pipelines import OutriderError, Pair
from outrider.pipelines.model.pair import name_of

from .user_message import UserMessage


@dataclass(frozen=True, slots=True)
class Choice:
    """A pair. `reason` says why it cannot be loaded, if its files are enough to tell."""

    name: str
    path: Path
    reason: UserMessage | None = None


def pairs_in(folder: Path, *others: Path) -> list[Choice]:
    """The embedded pair, `others`, and the folders in `folder`, sorted by name. `folder` need not exist.

    Raises NotReadable.
    """
    paths = [embedded_pair(), *others, *(path for path in folders_in(folder) if not path.name.startswith("."))]
    found: dict[Path, Path] = {}
    for path in paths:
        found.setdefault(path.resolve(), path)
    return [_choice(path) for path in found.values()]


def _choice(path: Path) -> Choice:
    try:
        check_files(Pair.open(path))
    except OutriderError as error:
        return Choice(name_of(path), path, UserMessage.of(error))
    return Choice(name_of(path), path)


def check_files(pair: Pair) -> None:
    """Raises BrokenPair where the configuration of a pair cannot be read."""
    _ = pair.max_context, pair.properties
