from __future__ import annotations

import errno
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from outrider.models.errors import InProgress, NotWritable, OutputExists
from outrider.models.staging import Staging, blaming_unwritable


def put_pair(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "pair.json").write_text(content)


def test_what_was_built_appears_only_when_published(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with Staging(out) as staging:
        (staging.path / "file").write_text("new")
        assert not out.exists()
        staging.publish()
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "file").read_text() == "new"


def test_what_was_not_published_is_taken_away(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), Staging(tmp_path / "out") as staging:
        (staging.path / "file").rename(staging.path / "nowhere" / "file")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_is_refused_and_left_alone(tmp_path: Path) -> None:
    put_pair(tmp_path / "out", "old")
    with pytest.raises(OutputExists, match="--force"), Staging(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "pair.json").read_text() == "old"


def test_force_is_offered_only_where_it_would_help(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(OutputExists, match=r"exists: choose another output folder\.$"), Staging(tmp_path / "notes"):
        pass
    put_pair(tmp_path / "out", "old")
    with pytest.raises(OutputExists) as refusal, Staging(tmp_path / "out", resume=True):
        pass
    assert "--force" not in str(refusal.value)


def test_force_replaces_a_pair_once_the_new_one_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_pair(out, "old")
    with Staging(out, force=True) as staging:
        (staging.path / "pair.json").write_text("new")
        assert (out / "pair.json").read_text() == "old"
        staging.publish()
    assert (out / "pair.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [out]


def test_force_keeps_the_old_pair_when_the_new_one_fails(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_pair(out, "old")
    with pytest.raises(ZeroDivisionError), Staging(out, force=True):
        raise ZeroDivisionError
    assert (out / "pair.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_has_appeared_at_the_output_meanwhile_is_kept_and_so_is_what_was_made(
    tmp_path: Path, kind: str, resume: bool, force: bool
) -> None:
    out = tmp_path / "out"
    dear = out / "thesis.txt" if kind == "folder" else out
    with Staging(out, force, resume) as staging:
        (staging.path / "file").write_text("new")
        dear.parent.mkdir(exist_ok=True)
        dear.write_text("dear")
        with pytest.raises(OutputExists, match="has appeared since") as refusal:
            staging.publish()
    assert dear.read_text() == "dear"
    assert (staging.path / "file").read_text() == "new"
    assert str(staging.path) in str(refusal.value)


def test_a_pair_that_has_appeared_meanwhile_is_replaced_only_by_force(tmp_path: Path) -> None:
    for force in (False, True):
        out = tmp_path / f"{force}"
        with suppress(OutputExists), Staging(out, force) as staging:
            put_pair(out, "old")
            (staging.path / "pair.json").write_text("new")
            staging.publish()
        assert (out / "pair.json").read_text() == ("new" if force else "old")


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_force_never_removes_what_is_not_a_pair(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("dear")
    elif kind == "file":
        out.write_text("dear")
    else:
        put_pair(tmp_path / "pair", "old")
        out.symlink_to(tmp_path / "pair")
    with pytest.raises(OutputExists, match="not replaced"), Staging(out, force=True):
        pass
    assert out.exists()


def test_leftovers_of_a_killed_export_are_removed_by_the_next(tmp_path: Path) -> None:
    killed = Staging(tmp_path / "out")
    killed.path.mkdir()
    (killed.path / "half").write_text("half")
    with Staging(tmp_path / "out") as staging:
        assert list(staging.path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_what_can_be_resumed_outlasts_an_export_to_its_name(tmp_path: Path) -> None:
    with Staging(tmp_path / "out", resume=True) as distillation:
        (distillation.path / "answers").write_text("hours of work")
    with Staging(tmp_path / "out") as export:
        assert list(export.path.iterdir()) == []
    with Staging(tmp_path / "out", resume=True) as distillation:
        assert [file.name for file in distillation.path.iterdir()] == ["answers"]


def test_what_resumes_takes_nothing_of_a_killed_export_and_removes_it(tmp_path: Path) -> None:
    killed = Staging(tmp_path / "out")
    killed.path.mkdir()
    (killed.path / "target").mkdir()
    with Staging(tmp_path / "out", resume=True) as staging:
        assert list(staging.path.iterdir()) == []
        staging.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_pair_that_was_being_replaced_when_its_export_was_killed_comes_back(tmp_path: Path) -> None:
    put_pair(tmp_path / "out", "old")
    (tmp_path / "out").rename(tmp_path / ".out.outrider-old")  # killed right after the first of two renames
    with pytest.raises(OutputExists), Staging(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "pair.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_place_that_cannot_be_written_to_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(NotWritable, match=r"file/out .*choose another place"), Staging(tmp_path / "file" / "out"):
        pass


def test_a_file_that_cannot_be_written_is_named_and_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(NotWritable, match="correct its permissions") as refusal, blaming_unwritable(tmp_path):
        (tmp_path / "nowhere" / "file").write_text("")
    assert "nowhere/file" in str(refusal.value)
    with pytest.raises(BrokenPipeError), blaming_unwritable(tmp_path):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_no_lock_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = tmp_path / "temporary"
    locks.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(locks))
    with Staging(tmp_path / "out") as staging:
        assert len(list(locks.iterdir())) == 1
        with pytest.raises(InProgress), Staging(tmp_path / "out"):
            pass
        assert len(list(locks.iterdir())) == 1  # the one that was refused leaves the lock of the other
        staging.publish()
    for refused in (OutputExists, NotWritable):
        out = tmp_path / "out" if refused is OutputExists else tmp_path / "file" / "out"
        (tmp_path / "file").touch()
        with pytest.raises(refused), Staging(out):
            pass
    assert list(locks.iterdir()) == []


def test_two_exports_to_one_place_do_not_meet(tmp_path: Path) -> None:
    with (
        Staging(tmp_path / "out") as first,
        pytest.raises(InProgress, match="Another process"),
        Staging(tmp_path / "out"),
    ):
        pass
    with Staging(tmp_path / "out"):
        assert first.out == tmp_path / "out"


@pytest.mark.parametrize("way", ["up/../out", "link/out"])
def test_two_exports_to_one_place_do_not_meet_however_it_is_written(tmp_path: Path, way: str) -> None:
    if way == "link/out":
        (tmp_path / "link").symlink_to(tmp_path)
    else:
        (tmp_path / "up").mkdir()
    with Staging(tmp_path / "out") as first, pytest.raises(InProgress), Staging(tmp_path / way):
        pass
    assert first.out == tmp_path / "out"
