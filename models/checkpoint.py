"""Checkpoints of the hub, downloaded as pairs are: checked by hash, and resumed after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from platformdirs import user_cache_path

from .errors import HubUnreachable
from .hub import TEXT_FILES, Repository, cached, cached_snapshot, fetch, list_repository
from .room import blaming_full_disk, in_words, require_room
from .staging import Claim, blaming_unwritable

# Some repositories hold the same weights a second time under other names: the first of these are taken.
WEIGHTS = ("model*.safetensors", "*_lm_head.safetensors", "pytorch_model*.bin", "medusa_lm_head.pt")
VOCABULARIES = ("*.tiktoken", "vocab.bpe")  # which tokenizers need beside TEXT_FILES
COMPLETE = "complete"  # holds the commit; `fetch` removes it first, so an interrupted download lacks it
STEP = 100 << 20  # bytes between two reports of progress, at least


@dataclass(frozen=True, slots=True)
class Download:
    """A checkpoint of the hub on this machine. `revision` is its commit."""

    folder: Path
    revision: str


def download(name: str, remote_code: bool, announce: Callable[[str], None], cache: Path | None = None) -> Download:
    """Download the checkpoint `ORG/NAME` or `ORG/NAME@REVISION`. Without a network, use what was downloaded before.

    remote_code: include the Python files that come with it.
    announce: called with the size before the download, and with its progress; or with why an earlier one is used.
    cache: the folder for checkpoints, by default one in the user's cache.

    Raises NoSuchModel, HubUnreachable, OtherRevision, BadDownload, NoRoom, NotWritable, InProgress.
    """
    folder = (cache or user_cache_path("outrider", appauthor=False) / "checkpoints") / name.replace("/", "--")
    try:
        repository = _listed(name, remote_code)
    except HubUnreachable as error:
        if found := _downloaded_before(name, folder):
            announce(f"{error} Until then, the earlier download of commit {found.revision[:12]} is used.")
            return found
        raise HubUnreachable(f"{name} is not a folder here. {error}") from error
    if elsewhere := cached(repository):
        return Download(elsewhere, repository.revision)
    missing = repository.missing_bytes(folder, same_commit=_complete_commit(folder) == repository.revision)
    require_room(folder, missing, f"Downloading {name}")
    announce(f"Downloading {name} from the Hugging Face hub ({in_words(missing)})" if missing else f"Checking {name}")
    with Claim(folder), blaming_unwritable(folder), blaming_full_disk(folder):
        try:
            fetch(repository, folder, _progress(name, repository, announce))
        except HubUnreachable as error:
            raise HubUnreachable(f"{error} What was downloaded is kept.") from error
        (folder / COMPLETE).write_text(repository.revision, encoding="ascii")
    return Download(folder, repository.revision)


def _listed(name: str, remote_code: bool) -> Repository:
    repository, _, revision = name.partition("@")
    patterns = (*TEXT_FILES, *VOCABULARIES, *(("*.py",) if remote_code else ()), *WEIGHTS)
    listed = list_repository(repository, revision or None, patterns, "neither a folder nor")
    kinds = [_kind_of(file.name) for file in listed.files]
    taken = min((kind for kind in kinds if kind is not None), default=None)
    files = tuple(file for file, kind in zip(listed.files, kinds, strict=True) if kind in (None, taken))
    return replace(listed, files=files)


def _kind_of(name: str) -> int | None:
    """The place in WEIGHTS of the pattern of a file of weights; None for another file."""
    return next((place for place, pattern in enumerate(WEIGHTS) if fnmatch(name, pattern)), None)


def _complete_commit(folder: Path) -> str | None:
    """The commit of a complete download."""
    mark = folder / COMPLETE
    return mark.read_text(encoding="ascii") if mark.is_file() else None


def _downloaded_before(name: str, folder: Path) -> Download | None:
    if commit := _complete_commit(folder):
        return Download(folder, commit)
    repository, _, revision = name.partition("@")
    snapshot = cached_snapshot(repository, revision or None)
    if snapshot is None or all(_kind_of(file.name) is None for file in snapshot.iterdir()):
        return None  # other programs may have fetched a tokenizer alone
    return Download(snapshot, snapshot.name)


def _progress(name: str, repository: Repository, announce: Callable[[str], None]) -> Callable[[int], None]:
    """Announces each tenth of the download, but no steps smaller than STEP bytes."""
    total = sum(file.size for file in repository.files)
    step = max(total // 10, STEP)
    arrived, announced = 0, 0

    def advance(count: int) -> None:
        nonlocal arrived, announced
        arrived += count
        if step <= arrived - announced and arrived < total:
            announced = arrived
            announce(f"Downloaded {in_words(arrived)} of {in_words(total)} of {name}")

    return advance
