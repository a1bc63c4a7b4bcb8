"""Checkpoints, downloaded from a stand-in for the hub."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

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


def test_what_was_downloaded_once_is_found_without_a_network(client: Client) -> None:
    assert client.download_apart("org/model")["revision"] == SHA
    client.settings = {"HF_HUB_OFFLINE": "1"}
    assert client.download_apart("org/model") == {"revision": SHA, "said": []}
    assert client.download("org/model")["files"] == ["config.json", "model.safetensors", "tokenizer.json"]
    client.settings, client.hub.endpoint = {}, "http://127.0.0.1:9"
    found = client.download("org/model")
    assert found["revision"] == SHA
    assert found["said"] == []


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
        ("org/model@v2", "NoSuchModel", "no revision v2"),
    ],
)
def test_what_the_hub_does_not_have_is_refused(client: Client, name: str, error: str, words: str) -> None:
    refusal = client.download(name)
    assert refusal["error"] == error
    assert words in refusal["message"]
    assert refusal["said"] == []


@pytest.mark.parametrize(
    ("settings", "words"), [({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"), ({}, "the hub cannot be reached")]
)
def test_without_a_hub_the_reason_is_given(client: Client, settings: dict[str, str], words: str) -> None:
    client.hub.endpoint, client.settings = "http://127.0.0.1:9", settings
    refusal = client.download("org/model")
    assert refusal["error"] == "HubUnreachable"
    assert words in refusal["message"]
