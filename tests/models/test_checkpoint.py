"""Checkpoints, downloaded from a stand-in for the hub."""

from __future__ import annotations

import errno
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants

from outrider.models.checkpoint import download
from outrider.pipelines.errors import OutriderError
from tests.hub import SHA, Hub, serving, taken_over

LIMIT = 1200  # seconds, for a machine that has other work to do
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"safe" * 100,
    "consolidated.safetensors": b"the same once more",
    "pytorch_model.bin": b"pickled",
    "modeling.py": b"print('remote code')",
    "README.md": b"about",
}
CLIENT = """
import json, sys
from pathlib import Path
from outrider.models.checkpoint import download
said = []
found = download(sys.argv[1], False, said.append, Path(sys.argv[2]))
print(json.dumps({"revision": found.revision, "said": said}))
"""


@dataclass
class Client:
    hub: Hub
    home: Path
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.hub.settings(self.home), **self.settings}

    def download(self, name: str, remote_code: bool = False) -> dict[str, Any]:
        said: list[str] = []
        try:
            with taken_over(self.environment):
                found = download(name, remote_code, said.append, self.home / "checkpoints")
        except OutriderError as error:
            return {"error": type(error).__name__, "message": str(error), "said": said}
        files = sorted(file.name for file in found.folder.iterdir() if file.name != "complete")
        return {"revision": found.revision, "files": files, "said": said}

    def download_apart(self, name: str) -> dict[str, Any]:
        """The same in a process of its own, in which the hub's library reads the environment."""
        finished = subprocess.run(
            [sys.executable, "-c", CLIENT, name, self.home / "checkpoints"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(Hub({"org/model": FILES}, gated=frozenset({"org/gated"}))) as hub:
        yield Client(hub, tmp_path / "home")


def test_a_download_is_announced_with_its_size_and_takes_only_what_is_needed(client: Client) -> None:
    found = client.download("org/model")
    assert found["said"] == ["Downloading org/model from the Hugging Face hub (425 bytes)"]
    assert found["files"] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert found["revision"] == SHA


def test_code_is_fetched_only_where_it_is_trusted(client: Client) -> None:
    assert "modeling.py" in client.download("org/model", remote_code=True)["files"]


def test_a_revision_can_be_named(client: Client) -> None:
    assert client.download("org/model@v1")["revision"] == SHA


@pytest.mark.slow
def test_what_was_downloaded_once_is_found_without_a_network(client: Client) -> None:
    assert client.download_apart("org/model")["revision"] == SHA
    client.settings = {"HF_HUB_OFFLINE": "1"}
    assert client.download_apart("org/model")["revision"] == SHA
    assert client.download("org/model")["files"] == ["config.json", "model.safetensors", "tokenizer.json"]
    client.settings, client.hub.endpoint = {}, "http://127.0.0.1:9"
    found = client.download("org/model")
    assert found["revision"] == SHA
    (said,) = found["said"]
    assert "the hub cannot be reached" in said
    assert f"the earlier download of commit {SHA[:12]} is used" in said


def test_a_download_goes_on_in_the_middle_of_a_file(client: Client) -> None:
    folder = client.home / "checkpoints" / "org--model"
    folder.mkdir(parents=True)
    weights = FILES["model.safetensors"]
    (folder / f"model.safetensors.{hashlib.sha256(weights).hexdigest()[:16]}.part").write_bytes(weights[:150])
    found = client.download("org/model")
    assert found["said"] == ["Downloading org/model from the Hugging Face hub (275 bytes)"]
    assert client.hub.ranges == {("org/model", "model.safetensors"): "bytes=150-"}
    assert (folder / "model.safetensors").read_bytes() == weights


def test_a_download_begins_anew_where_the_hub_sends_a_file_from_its_beginning(client: Client) -> None:
    client.hub.ignores_ranges = True
    folder = client.home / "checkpoints" / "org--model"
    folder.mkdir(parents=True)
    weights = FILES["model.safetensors"]
    (folder / f"model.safetensors.{hashlib.sha256(weights).hexdigest()[:16]}.part").write_bytes(weights[:150])
    assert "files" in client.download("org/model")
    assert (folder / "model.safetensors").read_bytes() == weights


def test_a_file_of_another_size_is_refused(client: Client) -> None:
    client.hub.served[("org/model", "model.safetensors")] = FILES["model.safetensors"] + b"more"
    refusal = client.download("org/model")
    assert refusal["error"] == "BadDownload"


def test_bytes_that_the_hub_does_not_list_are_refused_and_a_part_is_never_used(client: Client) -> None:
    client.hub.served[("org/model", "model.safetensors")] = b"evil" * 100
    refusal = client.download("org/model")
    assert refusal["error"] == "BadDownload"
    assert "model.safetensors of org/model" in refusal["message"]
    client.settings = {"HF_HUB_OFFLINE": "1"}
    assert client.download("org/model")["error"] == "HubUnreachable"


def test_a_checkpoint_in_the_cache_of_the_hub_is_used_and_not_downloaded_again(client: Client) -> None:
    snapshot = client.home / "hub" / "models--org--model" / "snapshots" / SHA
    snapshot.mkdir(parents=True)
    for name, content in FILES.items():
        (snapshot / name).write_bytes(content)
    found = client.download("org/model")
    assert (found["revision"], found["said"], client.hub.fetched) == (SHA, [], [])
    (snapshot / "model.safetensors").write_bytes(b"half")
    assert client.download("org/model")["said"]
    assert ("org/model", "model.safetensors") in client.hub.fetched


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("org/other", "NoSuchModel", "neither a folder nor a model of the Hugging Face hub"),
        ("org/gated", "NoSuchModel", "accept its licence"),
        ("org/model@v2", "NoSuchRevision", "no revision v2"),
    ],
)
def test_what_the_hub_does_not_have_is_refused(client: Client, name: str, error: str, words: str) -> None:
    refusal = client.download(name)
    assert refusal["error"] == error
    assert words in refusal["message"]
    assert refusal["said"] == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "1"}, "TRANSFORMERS_OFFLINE is set"),
        ({}, "the hub cannot be reached"),
    ],
)
def test_without_a_hub_the_reason_is_given(client: Client, settings: dict[str, str], words: str) -> None:
    client.hub.endpoint, client.settings = "http://127.0.0.1:9", settings
    refusal = client.download("org/model")
    assert refusal["error"] == "HubUnreachable"
    assert words in refusal["message"]


PORTAL = (200, b"<html>Welcome to the Wi-Fi</html>", {"Content-Type": "text/html"})
EXPIRED = (401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"})
FORBIDDEN = (403, b"{}", {"X-Error-Message": "Your token lacks permissions"})


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (PORTAL, "HubUnreachable", "does not answer as the hub does"),
        (EXPIRED, "NoSuchModel", "`hf auth login`, or unset HF_TOKEN"),
        (FORBIDDEN, "NoSuchModel", "Your token lacks permissions"),
        ((500, b"{}", {"X-Error-Message": "Out of order"}), "HubUnreachable", "Out of order"),
    ],
)
def test_what_else_the_hub_may_answer_is_told_in_one_line(
    client: Client, answer: tuple[int, bytes, dict[str, str]], error: str, words: str
) -> None:
    client.hub.answer = answer
    refusal = client.download("org/model")
    assert refusal["error"] == error
    assert words in refusal["message"]
    assert "\n" not in refusal["message"]


@pytest.mark.parametrize(("answer", "is_used"), [(PORTAL, True), (EXPIRED, False), (FORBIDDEN, False)])
def test_an_earlier_download_is_used_without_a_hub_but_not_where_the_login_is_refused(
    client: Client, answer: tuple[int, bytes, dict[str, str]], is_used: bool
) -> None:
    client.download("org/model")
    client.hub.answer = answer
    found = client.download("org/model")
    assert ("revision" in found) == is_used
    assert bool(found["said"]) == is_used


@pytest.mark.parametrize(
    ("variable", "proxy"), [("ALL_PROXY", "socks5://me:secret@127.0.0.1:9"), ("all_proxy", "socks://127.0.0.1:9/")]
)
def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(client: Client, variable: str, proxy: str) -> None:
    client.settings = {variable: proxy}
    close_session()  # the hub's library reads proxies when it opens one
    refusal = client.download("org/model")
    assert refusal["error"] == "HubUnreachable"
    assert f"{variable} asks for a {proxy.partition(':')[0]}:// proxy" in refusal["message"]
    assert "secret" not in refusal["message"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"HF_TOKEN": "hf_secret…"}, "your token has characters that no token has"),
        ({"SSL_CERT_FILE": "/no/such/file"}, "SSL_CERT_FILE is /no/such/file"),
        ({"SSL_CERT_FILE": __file__}, "which has no certificates"),
    ],
)
def test_a_setting_that_cannot_be_used_is_told(client: Client, settings: dict[str, str], words: str) -> None:
    client.settings = settings
    close_session()  # the hub's library reads certificates when it opens one
    refusal = client.download("org/model")
    assert refusal["error"] == "HubUnreachable"
    assert words in refusal["message"]
    assert "secret" not in refusal["message"]


def test_a_token_that_cannot_be_read_is_told_by_its_file(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.home.mkdir()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(client.home))
    refusal = client.download("org/model")
    assert refusal["error"] == "HubUnreachable"
    assert f"{client.home} cannot be read (Is a directory)" in refusal["message"]


def test_a_cache_that_cannot_be_written_to_is_told(client: Client) -> None:
    client.home.mkdir()
    (client.home / "checkpoints").write_text("no folder")
    refusal = client.download("org/model")
    assert refusal["error"] == "NotWritable"
    assert f"{client.home / 'checkpoints' / 'org--model'}" in refusal["message"]


def test_a_tokenizer_alone_in_the_cache_of_the_hub_is_no_earlier_download(client: Client) -> None:
    cache = client.home / "hub" / "models--org--model"
    (snapshot := cache / "snapshots" / SHA).mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(SHA)
    (snapshot / "tokenizer.json").write_bytes(FILES["tokenizer.json"])
    client.settings = {"HF_HUB_OFFLINE": "1"}
    assert client.download("org/model")["error"] == "HubUnreachable"
    (snapshot / "model.safetensors").write_bytes(FILES["model.safetensors"])
    assert client.download("org/model")["revision"] == SHA


def test_a_disk_that_is_full_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: object, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("outrider.models.hub._CountedFile.write", write)
    refusal = client.download("org/model")
    assert refusal["error"] == "NoRoom"
    assert "is full" in refusal["message"]


@pytest.mark.parametrize("weights", [b"more" * 200, b"self" * 100], ids=["of another size", "of the same size"])
def test_an_outdated_file_counts_as_missing(client: Client, weights: bytes) -> None:
    client.download("org/model")
    client.hub.repositories["org/model"] = {**FILES, "model.safetensors": weights}
    client.hub.moved = {"org/model": "f" * 40}
    found = client.download("org/model")
    assert found["said"] == [f"Downloading org/model from the Hugging Face hub ({len(weights)} bytes)"]


def test_a_complete_download_is_checked(client: Client) -> None:
    client.download("org/model")
    assert client.download("org/model")["said"] == ["Checking org/model"]


def test_every_file_that_a_tokenizer_needs_is_taken(client: Client) -> None:
    names = {"qwen.tiktoken", "vocab.bpe", "merges.txt", "vocab.json", "tokenizer.model"}
    client.hub.repositories["org/model"] = {**FILES, **dict.fromkeys(names, b"words")}
    assert names <= set(client.download("org/model")["files"])
