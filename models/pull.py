"""Pull: downloads a pair of the catalogue. It appears under its name only when complete and checked."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from outrider.pipelines.errors import BrokenPair, OutriderError, VocabularyMismatch
from outrider.pipelines.model.pair import MODEL_FILES, Pair
from outrider.pipelines.model.tuning import fastest_properties
from outrider.pipelines.model.vocabulary import check_same_vocabulary
from outrider.pipelines.text.tokenizer import Tokenizer

from . import pair_folder
from .catalogue import Commit, Entry, Model
from .errors import HubUnreachable, IncompleteModel, NoSuchRevision, OtherRevision, OutputExists
from .hub import Repository, fetch, list_repository
from .room import blaming_full_disk, in_words, require_room
from .staging import Staging, blaming_unwritable

OPTIONS = {"target": "--revision", "draft": "--draft-revision"}  # of commits, by role
BEGUN = "begun.json"  # holds the commits of an unfinished pull
MADE_WITH = ("outrider", "openvino", "openvino-tokenizers", "openvino-genai", "huggingface-hub")

Begin = Callable[[int], Callable[[int], None]]  # called with all bytes; returns a callback for bytes done


def pull(
    entry: Entry,
    folder: Path,
    *,
    draft: bool = True,
    revisions: Mapping[str, str] = MappingProxyType({}),
    announce: Callable[[str], None] = lambda text: None,
    begin: Begin = lambda total: lambda count: None,
) -> Path:
    """Download `entry` to the subfolder of its name in `folder`, and return the subfolder.

    draft: False omits the draft.
    revisions: commits by role, instead of those in the catalogue.
    announce: called with each step before it begins.
    begin: called with the bytes of all files; returns a callback for bytes that are done.

    An interrupted pull leaves a hidden folder, which the next pull of the same name resumes at the same commits.

    Raises NoSuchModel, HubUnreachable, OtherRevision, IncompleteModel, BadDownload, NoRoom, OutputExists, NotWritable,
    InProgress, BrokenPair, VocabularyMismatch.
    """
    out = folder / entry.name
    with blaming_unwritable(folder):
        is_there = out.exists()
    if is_there:
        raise OutputExists(
            f"{entry.name} was pulled before, to {out}: use it with --pair {entry.name}, or remove it first with "
            f"`outrider models remove {entry.name}`."
        )
    models: dict[str, Model] = {"target": entry.target}
    if draft and entry.draft is not None:
        models["draft"] = entry.draft
    with Staging(out, resume=True) as staging, blaming_unwritable(staging.path), blaming_full_disk(staging.path):
        wanted = {role: revisions.get(role, model.revision) for role, model in models.items()}
        begun = _begun(staging.path)
        for role, revision in begun.items():
            _check_begun(entry.name, role, revision, wanted.get(role))
        repositories = {
            role: _list(entry.name, model.repository, begun.get(role), wanted[role]) for role, model in models.items()
        }
        for role, repository in repositories.items():
            _require_runnable(repository, entry.name, role)
        if "draft" not in models and (staging.path / "draft").exists():
            shutil.rmtree(staging.path / "draft")
        missing = sum(repository.missing_bytes(staging.path / role) for role, repository in repositories.items())
        require_room(out.parent, missing, f"Pulling {entry.name}")
        _note_begun(staging.path, begun | {role: each.revision for role, each in repositories.items()})
        advance = begin(sum(file.size for repository in repositories.values() for file in repository.files))
        for role, repository in repositories.items():
            announce(f"Downloading the {role}, {repository.name} at {repository.revision[:12]}")
            try:
                fetch(repository, staging.path / role, advance)
            except HubUnreachable as error:
                raise HubUnreachable(f"{error} What was downloaded is kept.") from error
        if "draft" in models:
            announce("Comparing the vocabularies")
        num_tokens = _check_vocabularies(entry.name, staging.path, tuple(models))
        announce("Measuring which properties make the target fastest")
        properties = _fastest_properties(staging.path / "target", announce)
        announce("Hashing the files")
        _describe(staging.path, models, repositories, num_tokens, properties)
        (staging.path / BEGUN).unlink()
        Pair.open(staging.path)
        gc.collect()  # the measured models map the files that are renamed now
        staging.publish()
    announce(f"Pulled {entry.name}, {in_words(pair_folder.size(out))}")
    return out


def _begun(path: Path) -> dict[str, str]:
    """The commits of an interrupted pull, by role."""
    try:
        return TypeAdapter(dict[str, Commit]).validate_json((path / BEGUN).read_bytes())
    except (OSError, ValidationError):  # no pull, or interrupted while writing
        return {}


def _note_begun(path: Path, revisions: Mapping[str, str]) -> None:
    (path / BEGUN).write_text(json.dumps(revisions), encoding="utf-8")


def _check_begun(name: str, role: str, begun: str, wanted: str | None) -> None:
    if wanted is not None and wanted != begun:
        raise OtherRevision(
            f"An interrupted pull of {name} has begun with its {role} at {begun}, not at {wanted}: remove it with "
            f"`outrider models remove {name}`, or resume it with {OPTIONS[role]} {begun}."
        )


def _list(name: str, repository: str, begun: str | None, wanted: str | None) -> Repository:
    """What the hub has of a repository at the commit of an interrupted pull, or else at the one that is wanted."""
    try:
        return list_repository(repository, begun or wanted)
    except NoSuchRevision as error:
        if begun is None:
            raise
        raise NoSuchRevision(
            f"{error} An interrupted pull of {name} has begun with it: remove that with "
            f"`outrider models remove {name}`, and pull again."
        ) from error


def _require_runnable(repository: Repository, name: str, role: str) -> None:
    """Check before gigabytes are downloaded. Raises IncompleteModel."""
    missing = sorted(set(MODEL_FILES) - {file.name for file in repository.files})
    if missing:
        remedy = f"take the target alone with `outrider models pull {name} --without-draft`, or " * (role == "draft")
        raise IncompleteModel(
            f"{repository.name} on the hub lacks {', '.join(missing)}, so it cannot run here: {remedy}make the pair "
            "with `outrider export`."
        )


def _check_vocabularies(name: str, path: Path, roles: tuple[str, ...]) -> int:
    """The size of the target's vocabulary. Raises BrokenPair or VocabularyMismatch if the draft's differs."""
    target = Tokenizer(path / "target").vocabulary
    if "draft" in roles:
        try:
            check_same_vocabulary(target, Tokenizer(path / "draft").vocabulary, "target and draft")
        except (BrokenPair, VocabularyMismatch) as error:
            raise type(error)(
                f"{name} is not usable as a pair. {error} The target alone can be used: "
                f"`outrider models pull {name} --without-draft`; nothing is downloaded twice."
            ) from error
    return len(target)


def _fastest_properties(target: Path, announce: Callable[[str], None]) -> dict[str, int]:
    """The properties that make the target fastest; none if it does not run on this machine, which is no reason to
    fail."""
    try:
        return fastest_properties(target)
    except OutriderError as error:
        announce(f"The target cannot be measured: {error}")
        return {}


def _describe(
    path: Path,
    models: Mapping[str, Model],
    repositories: Mapping[str, Repository],
    num_tokens: int,
    properties: Mapping[str, int],
) -> None:
    """Write pair.json."""
    described: dict[str, Any] = {
        role: {
            "source": model.repository,
            "revision": repositories[role].revision,
            "licence": model.licence,
            "weights": model.weights,
            "bytes": pair_folder.size(path / role),
        }
        for role, model in models.items()
    }
    described["target"]["properties"] = dict(properties)
    metadata = pair_folder.describe(path, described, MADE_WITH)
    checks = {"vocabulary": {"tokens": num_tokens, "same_in": list(models)}, "files": "as the hub lists them"}
    pair_folder.write(path, {**metadata, "checks": checks})
