from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from outrider.models import pulled
from outrider.models.catalogue import Catalogue
from outrider.models.errors import HubUnreachable, InProgress, NoRoom, NotWritable, UnknownName
from outrider.models.hub import RemoteFile, Repository
from outrider.models.pull import pull
from outrider.models.staging import Claim, Staging
from outrider.pipelines.model.pair import MODEL_FILES


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
    assert pulled.unfinished(tmp_path, "qwen3-8b") >= len("half"), "which commit it was is noted next to it"


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
