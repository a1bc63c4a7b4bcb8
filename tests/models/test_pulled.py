from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path

import pytest

from outrider.models import pair_folder, pulled
from outrider.models.catalogue import Catalogue
from outrider.models.errors import (
    HubUnreachable,
    InProgress,
    NoRoom,
    NoSuchRevision,
    NotReadable,
    NotWritable,
    UnknownName,
)
from outrider.models.hub import RemoteFile, Repository
from outrider.models.pull import pull
from outrider.models.staging import Claim, Staging
from outrider.pipelines.model.pair import MODEL_FILES, Pair


def put(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "pair.json").write_text("{}")
    return folder / name


def test_a_name_means_a_pulled_pair_and_a_path_means_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pairs"
    mine = put(folder, "mine")
    assert pulled.find_pair("mine", folder) == mine
    assert pulled.find_pair("./mine", folder) == Path("mine")
    assert pulled.find_pair("no/such/folder", folder) == Path("no/such/folder")
    with pytest.raises(UnknownName, match="There is no folder nobody and no pair of that name"):
        pulled.find_pair("nobody", folder)
    put(tmp_path, "mine")
    assert pulled.find_pair("mine", folder) == Path("mine")  # a folder that is there comes first


def test_a_pair_that_only_the_catalogue_has_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="outrider models pull qwen3-8b"):
        pulled.find_pair("qwen3-8b", tmp_path)


def test_what_is_hidden_or_a_file_is_no_pair(tmp_path: Path) -> None:
    put(tmp_path, ".qwen3-8b.outrider-new")
    put(tmp_path, f".gone{pulled.REMOVED}")
    (tmp_path / "file").write_text("")
    assert pulled.pulled_pairs(tmp_path) == []
    assert pulled.pulled_pairs(tmp_path / "nowhere") == []


def lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content can be listed, but not be looked at, as without the permission to enter it."""

    def forbidden(path: Path, usual: Callable[[Path], bool]) -> bool:
        if path.parent == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return usual(path)

    put(folder, "mine")
    for name in ("is_dir", "exists"):
        monkeypatch.setattr(Path, name, partialmethod(forbidden, getattr(Path, name)))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder, monkeypatch: folder.write_text("no folder"),
        lambda folder, monkeypatch: folder.symlink_to(folder),
        lock,
    ],
    ids=["a file", "a link to itself", "permissions"],
)
def test_a_folder_of_pairs_that_cannot_be_read_is_named(
    spoil: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pairs"
    spoil(folder, monkeypatch)
    for do in (
        lambda: pulled.pulled_pairs(folder),
        lambda: pulled.unfinished(folder),
        lambda: pulled.half_removed(folder),
        lambda: pulled.find_pair("other", folder),
        lambda: pulled.remove("mine", folder),
    ):
        with pytest.raises(NotReadable, match=re.escape(f"{folder}, cannot be read")):
            do()
    with pytest.raises(NotWritable, match=re.escape(str(folder))):
        pull(Catalogue.shipped().entry("qwen3-8b"), folder)


def test_a_pair_of_another_user_is_listed_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> Pair:
        raise PermissionError(errno.EACCES, "Permission denied", str(path / "pair.json"))

    mine = put(tmp_path, "mine")
    monkeypatch.setattr(Pair, "open", unreadable)
    (listed,) = pulled.pulled_pairs(tmp_path)
    assert listed.problem == f"[Errno {errno.EACCES}] Permission denied: '{mine / 'pair.json'}'"


def test_a_removal_that_was_interrupted_is_finished_by_the_next(tmp_path: Path) -> None:
    put(tmp_path, f".mine{pulled.REMOVED}")
    put(tmp_path, "mine")
    pulled.remove("mine", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_removal_that_was_interrupted_can_be_repeated_and_its_size_is_told(tmp_path: Path) -> None:
    put(tmp_path, f".mine{pulled.REMOVED}")
    assert pulled.half_removed(tmp_path) == {"mine": len("{}")}
    pulled.remove("mine", tmp_path)
    assert pulled.half_removed(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []
    assert pulled.half_removed(tmp_path / "nowhere") == {}


def test_a_pull_that_was_interrupted_is_told_with_its_size_unless_nothing_came(tmp_path: Path) -> None:
    put(tmp_path, ".mine.outrider-new")
    (tmp_path / ".empty.outrider-new").mkdir()
    assert pulled.unfinished(tmp_path) == {"mine": len("{}")}
    assert pulled.unfinished(tmp_path / "nowhere") == {}


def test_a_link_to_a_pair_is_not_removed_and_called_what_it_is(tmp_path: Path) -> None:
    elsewhere = put(tmp_path / "elsewhere", "mine")
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "mine").symlink_to(elsewhere)
    with pytest.raises(UnknownName, match=r"mine is a link to .*elsewhere/mine, so nothing is removed"):
        pulled.remove("mine", folder)
    assert (folder / "mine" / "pair.json").is_file()


@pytest.mark.skipif(os.name == "nt", reason="Windows has other limits")
@pytest.mark.parametrize("length", [250, 300])
def test_a_name_that_is_too_long_is_that_of_no_pair(tmp_path: Path, length: int) -> None:
    with pytest.raises(UnknownName, match="not a pulled pair"):
        pulled.remove("a" * length, tmp_path)


def test_a_home_folder_of_nobody_is_no_pair(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no folder ~nobody-at-all/pair"):
        pulled.find_pair("~nobody-at-all/pair", tmp_path)


def test_a_folder_has_a_size_while_another_process_removes_parts_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = put(tmp_path, "mine")
    scandir = os.scandir

    def removed_first(path: os.PathLike[str]) -> object:
        if Path(path) == mine:
            monkeypatch.undo()
            shutil.rmtree(mine)
        return scandir(path)

    (tmp_path / "file").write_text("12345")
    monkeypatch.setattr(os, "scandir", removed_first)
    assert pair_folder.size(tmp_path) == 5


def test_nothing_is_removed_while_it_is_being_written(tmp_path: Path) -> None:
    mine = put(tmp_path, "mine")
    with Claim(mine), pytest.raises(InProgress):
        pulled.remove("mine", tmp_path)
    assert mine.is_dir()


@pytest.mark.skipif(os.name == "nt" or os.getuid() == 0, reason="needs a folder that this user cannot write to")
def test_what_cannot_be_removed_stays(tmp_path: Path) -> None:
    mine = put(tmp_path, "mine")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(NotWritable, match="end the programs that use it"):
            pulled.remove("mine", tmp_path)
        assert (mine / "pair.json").is_file()
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_is_found_out_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tuple(RemoteFile(name, 10**15, "0" * 64, None) for name in MODEL_FILES)
    monkeypatch.setattr(
        "outrider.models.pull.list_repository", lambda name, revision=None: Repository(name, "0" * 40, files)
    )
    assert shutil.disk_usage(tmp_path).free < 10**15
    with pytest.raises(NoRoom, match="Pulling qwen3-8b needs about"):
        pull(Catalogue.shipped().entry("qwen3-8b"), tmp_path)
    assert pulled.pulled_pairs(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), NoRoom, "is full"),
        (HubUnreachable("org/a cannot be downloaded: the hub cannot be reached."), HubUnreachable, "is kept"),
    ],
)
def test_what_ends_a_pull_in_the_middle_is_said_and_nothing_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception], words: str
) -> None:
    def fetch(repository: Repository, folder: Path, advance: object) -> None:
        folder.mkdir()
        (folder / "half").write_text("half")
        raise error

    files = tuple(RemoteFile(name, 5, "0" * 64, None) for name in MODEL_FILES)
    monkeypatch.setattr(
        "outrider.models.pull.list_repository", lambda name, revision=None: Repository(name, "0" * 40, files)
    )
    monkeypatch.setattr("outrider.models.pull.fetch", fetch)
    with pytest.raises(expected, match=words):
        pull(Catalogue.shipped().entry("qwen3-8b"), tmp_path)
    assert pulled.pulled_pairs(tmp_path) == []
    assert pulled.unfinished(tmp_path)["qwen3-8b"] >= len("half"), "which commit it was is noted next to it"


def begin(folder: Path) -> Path:
    """Leave a pull of qwen3-8b behind that was interrupted. Returns its hidden folder."""
    begun = folder / ".qwen3-8b.outrider-new"
    begun.mkdir()
    (begun / "begun.json").write_text(json.dumps({"target": "f" * 40}))
    return begun


def test_a_pull_whose_commit_is_gone_says_how_to_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def list_repository(name: str, revision: str | None = None) -> Repository:
        raise NoSuchRevision(f"{name} has no revision {revision} on the Hugging Face hub.")

    monkeypatch.setattr("outrider.models.pull.list_repository", list_repository)
    entry = Catalogue.shipped().entry("qwen3-8b")
    with pytest.raises(NoSuchRevision) as refusal:
        pull(entry, tmp_path, revisions={"target": "f" * 40})
    assert "interrupted" not in str(refusal.value)
    shutil.rmtree(tmp_path / ".qwen3-8b.outrider-new")
    begin(tmp_path)
    with pytest.raises(NoSuchRevision, match=r"interrupted pull of qwen3-8b .* `outrider models remove qwen3-8b`"):
        pull(entry, tmp_path)


def test_files_of_an_interrupted_pull_that_cannot_be_written_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (begin(tmp_path) / "target").write_text("no folder")
    files = tuple(RemoteFile(name, 5, "0" * 64, None) for name in MODEL_FILES)
    monkeypatch.setattr(
        "outrider.models.pull.list_repository", lambda name, revision=None: Repository(name, "f" * 40, files)
    )
    with pytest.raises(NotWritable, match=r"outrider-new/target"):
        pull(Catalogue.shipped().entry("qwen3-8b"), tmp_path)


def test_two_pulls_of_one_pair_do_not_meet(tmp_path: Path) -> None:
    with Staging(tmp_path / "qwen3-8b", resume=True), pytest.raises(InProgress, match="Another process"):
        pull(Catalogue.shipped().entry("qwen3-8b"), tmp_path)


def test_staging_that_resumes_keeps_what_there_is(tmp_path: Path) -> None:
    with Staging(tmp_path / "out", resume=True) as staging:
        (staging.path / "half").write_text("half")
    assert not (tmp_path / "out").exists()
    with Staging(tmp_path / "out", resume=True) as staging:
        assert (staging.path / "half").read_text() == "half"
        staging.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
