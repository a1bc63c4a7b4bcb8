"""Downloads, from a small stand-in for the hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

LIMIT = 1200  # seconds, for a machine that has other work to do
SHA = "0123456789abcdef0123456789abcdef01234567"
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
from outrider.export.hub import download
from outrider.pipelines.errors import OutriderError
said = []
try:
    found = download(sys.argv[1], sys.argv[2] == "code", said.append)
    files = sorted(file.name for file in found.folder.iterdir())
    print(json.dumps({"revision": found.revision, "files": files, "said": said}))
except OutriderError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error), "said": said}))
"""


class FakeHub(BaseHTTPRequestHandler):
    """Answers as the hub does for org/model; org/gated needs a licence, anything else does not exist."""

    def do_HEAD(self) -> None:
        self.respond(with_body=False)

    def do_GET(self) -> None:
        self.respond(with_body=True)

    def respond(self, with_body: bool) -> None:
        path = self.path.split("?")[0].strip("/")
        if path.startswith("api/models/org/model/revision/") and not path.endswith((SHA, "main", "v1")):
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
        elif path.startswith("api/models/org/model"):
            siblings = [{"rfilename": name, "size": len(content)} for name, content in FILES.items()]
            info = {"_id": "1", "id": "org/model", "sha": SHA, "siblings": siblings, "private": False, "tags": []}
            self.reply(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, with_body)
        elif path.startswith(f"org/model/resolve/{SHA}/"):
            content = FILES[path.rsplit("/", 1)[1]]
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            self.reply(200, content, {"ETag": etag, "X-Repo-Commit": SHA}, with_body)
        elif "org/gated" in path:
            self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"}, with_body)
        else:
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)

    def reply(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  as the base class names it
        """Keep the tests quiet."""


@dataclass
class Client:
    """Downloads in a process of its own, since the hub's library reads its settings once."""

    endpoint: str
    home: Path
    settings: dict[str, str] = field(default_factory=dict)

    def download(self, name: str, remote_code: bool = False) -> dict[str, Any]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()
        }
        finished = subprocess.run(
            [sys.executable, "-c", CLIENT, name, "code" if remote_code else ""],
            env={**kept, "HF_ENDPOINT": self.endpoint, "HF_HOME": str(self.home), **self.settings},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Client(f"http://127.0.0.1:{server.server_port}", tmp_path / "home")
    server.shutdown()
    server.server_close()


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
    client.download("org/model")
    client.settings = {"HF_HUB_OFFLINE": "1"}
    assert client.download("org/model")["files"] == ["config.json", "model.safetensors", "tokenizer.json"]
    client.settings, client.endpoint = {}, "http://127.0.0.1:9"
    found = client.download("org/model")
    assert found["revision"] == SHA
    assert found["said"] == []


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
    client.endpoint, client.settings = "http://127.0.0.1:9", settings
    refusal = client.download("org/model")
    assert refusal["error"] == "HubUnreachable"
    assert words in refusal["message"]
