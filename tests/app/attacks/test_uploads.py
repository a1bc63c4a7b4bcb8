"""Uploads that are too large, too many, or want to lie or lead somewhere else; and other ways to files."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import safehttpx

from outrider.app.chat.ui.uploads import UploadLimits, upload_folder

from .conftest import Evil, Target, local_address, targeted

LIMITS = UploadLimits(one=20_000, together=60_000, files=8, kept_s=3600)


def stored() -> list[Path]:
    return [path for path in upload_folder().rglob("*") if path.is_file()]


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Target]:
    """A page with room for little, and nothing in it."""
    for path in stored():
        path.unlink()
    with targeted(tmp_path, limits=LIMITS) as target:
        yield target
    for path in stored():
        path.unlink()


def test_a_file_that_is_too_large_is_refused_before_it_is_read(narrow: Target) -> None:
    assert narrow.upload(("a.txt", b"x" * 20_001)).status_code == 413
    port = int(narrow.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        head = f"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 9999999999\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert stored() == []


def test_an_upload_of_unknown_length_is_refused(narrow: Target) -> None:
    for path in ("/gradio_api/upload", "/gradio_api/queue/join"):
        answer = narrow.post(path, content=iter([b"x"]), headers={"Content-Type": "multipart/form-data; boundary=b"})
        assert answer.status_code == 411
    assert stored() == []


def test_a_flood_of_uploads_does_not_fill_the_disk(narrow: Target) -> None:
    taken = [narrow.upload((f"{number}.txt", bytes([number]) * 15_000)).status_code for number in range(10)]
    assert 507 in taken
    assert set(taken) == {200, 507}
    assert sum(path.stat().st_size for path in stored()) <= LIMITS.together


def test_a_flood_of_small_uploads_does_not_either(narrow: Target) -> None:
    taken = [narrow.upload((f"{number}.txt", bytes([number]))).status_code for number in range(12)]
    assert taken == [200] * LIMITS.files + [507] * 4


def test_old_uploads_make_room_for_new_ones(narrow: Target) -> None:
    while narrow.upload((f"{len(stored())}.txt", bytes([len(stored())]))).status_code == 200:
        pass
    past = time.time() - LIMITS.kept_s - 60
    for path in stored():
        os.utime(path, (past, past))
    assert narrow.upload(("new.txt", b"new")).status_code == 200
    assert [path.name for path in stored()] == ["new.txt"]


def test_an_event_that_is_too_large_is_refused(target: Target) -> None:
    answer = target.post("/gradio_api/queue/join", content=b"x" * (8 * 1024 * 1024 + 1))
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "name", ["../../evil.txt", "..%2f..%2fevil.txt", "/tmp/evil.txt", "..\\..\\evil.txt", "..", "a/../../evil.txt"]
)
def test_the_name_of_an_upload_leads_nowhere(target: Target, name: str) -> None:
    before = {path.resolve() for path in stored()}
    target.upload((name, name.encode()))
    new = {path.resolve() for path in stored()} - before
    assert new
    assert all(path.is_relative_to(upload_folder()) for path in new)
    assert not (upload_folder().parent / "evil.txt").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows gives each user a temporary folder")
def test_other_users_cannot_look_into_the_folder_of_uploads(target: Target) -> None:
    assert stat.S_IMODE(upload_folder().stat().st_mode) == 0o700
    (path,) = target.upload(("a.txt", b"secret")).json()
    assert Path(path).is_relative_to(upload_folder())


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/file={secret}", "/gradio_api/file/{secret}", "/gradio_api/file=..%2f..%2f..%2f..%2f{secret}",
     "/gradio_api/file={uploads}/../{secret}", "/gradio_api/file={uploads}/%2e%2e/%2e%2e{secret}",
     "/static/../../../../../../../../..{secret}", "/assets/..%2f..%2f..%2f..%2f..%2f..%2f..{secret}",
     "/gradio_api/proxy=file://{secret}", "/gradio_api/file=file://{secret}",
     "/gradio_api/custom_component/../../../..{secret}", "/svelte/..%2f..%2f..{secret}"],
)  # fmt: skip
def test_no_route_gives_a_file_of_the_machine(target: Target, tmp_path: Path, path: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a-secret-of-the-machine")
    answer = target.get(path.format(secret=secret, uploads=upload_folder()))
    assert "a-secret-of-the-machine" not in answer.text
    assert answer.status_code >= 400


def test_no_event_takes_a_file_of_the_machine_for_an_upload(target: Target, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("a-secret-of-the-machine")
    config = target.get("/config").json()
    buttons = {part["id"] for part in config["components"] if part["type"] == "uploadbutton"}
    events = [event for event in config["dependencies"] if buttons & set(event["inputs"])]
    assert len(events) >= 2  # attachments and imports
    file = {"path": str(secret), "orig_name": "secret.txt", "meta": {"_type": "gradio.FileData"}}
    for number, event in enumerate(events):
        for value in (file, [file]):
            data = [value if part in buttons else None for part in event["inputs"]]
            session = f"session{number}{isinstance(value, list)}"
            joined = target.post(
                "/gradio_api/queue/join", json={"data": data, "fn_index": event["id"], "session_hash": session}
            )
            assert "a-secret-of-the-machine" not in joined.text
            if joined.status_code == 200:
                told = target.get(f"/gradio_api/queue/data?session_hash={session}").text
                assert "a-secret-of-the-machine" not in told
                messages = [json.loads(line[5:]) for line in told.splitlines() if line.startswith("data:")]
                assert [message["success"] for message in messages if message["msg"] == "process_completed"] == [False]


@pytest.mark.slow
def test_no_event_fetches_an_address_for_a_file(target: Target, evil: Evil, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio fetches what is given as a file to a component of any kind, a text box for one."""
    monkeypatch.setattr(safehttpx, "async_validate_url", local_address)
    events = [event for event in target.get("/config").json()["dependencies"] if event["inputs"] and event["queue"]]
    assert len(events) > 10
    for number, event in enumerate(events):
        file = {"path": f"{evil.url}/{number}.txt", "meta": {"_type": "gradio.FileData"}}
        for value in (file, [file], {"path": "", "value": file}):
            body = {"data": [value] * len(event["inputs"]), "fn_index": event["id"], "session_hash": f"fetch{number}"}
            if target.post("/gradio_api/queue/join", json=body).status_code == 200:
                assert '"success":true' not in target.get(f"/gradio_api/queue/data?session_hash=fetch{number}").text
    assert evil.asked == []
