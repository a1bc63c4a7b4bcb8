"""A small stand-in for the Hugging Face hub on this machine, which tests tell how to behave."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

from huggingface_hub import constants

SHA = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".bin", ".safetensors")  # what the hub keeps by its SHA-256, as it does large files


@dataclass
class Hub:
    """What the stand-in holds and does.

    repositories: by id, the files by name. `gated` ones need a licence; what is neither does not exist.
    served: instead of a file's bytes, by (id, name).
    stall: a file (id, name) of which only so many bytes are sent before it waits for `go`; told by `stalled`.
    ranges: the Range header of each request for a file that had one, by (id, name).
    moved: the commits at which repositories stand by now, in place of SHA, for which they can still be asked.
    stubborn: whether it answers with that commit where SHA is asked for, too.
    ignores_ranges: whether it sends whole files to clients that ask for a part, as some proxies do.
    answer: the status, content and headers of the answer to everything, in place of what it holds.
    """

    repositories: dict[str, Mapping[str, bytes]]
    gated: frozenset[str] = frozenset()
    served: dict[tuple[str, str], bytes] = field(default_factory=dict)
    stall: dict[tuple[str, str], int] = field(default_factory=dict)
    ranges: dict[tuple[str, str], str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    stubborn: bool = False
    ignores_ranges: bool = False
    answer: tuple[int, bytes, dict[str, str]] | None = None
    fetched: list[tuple[str, str]] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""

    def settings(self, home: Path) -> dict[str, str]:
        """The environment of a process that takes this for the hub."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()
        }
        return {**kept, "HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_HUB_DOWNLOAD_TIMEOUT": "60"}


@contextmanager
def taken_over(environment: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile this process has the environment of another one, as `Hub.settings` gives it. The hub's library has read
    its own before, so its settings change."""
    endpoint = environment["HF_ENDPOINT"]
    settings = {
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        "HF_HUB_OFFLINE": "HF_HUB_OFFLINE" in environment,
        "HF_HUB_CACHE": str(Path(environment["HF_HOME"], "hub")),
        "HF_HUB_DOWNLOAD_TIMEOUT": 60,
    }
    with patch.multiple(constants, **settings), patch.dict(os.environ, environment, clear=True):
        yield


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve on a free port of this machine."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.go.set()
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def _respond(self, with_body: bool) -> None:
        path = self.path.split("?")[0].strip("/").removeprefix("api/models/")
        repository = "/".join(path.split("/")[:2])
        rest = path.removeprefix(repository).strip("/")
        if self.hub.answer is not None:
            self._reply(*self.hub.answer, with_body)
        elif repository in self.hub.gated:
            self._reply(403, b"{}", {"X-Error-Code": "GatedRepo"}, with_body)
        elif repository not in self.hub.repositories:
            self._reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
        elif rest.startswith("resolve/"):
            self._send_file(repository, rest.rsplit("/", 1)[1], with_body)
        elif rest.startswith("revision/") and not rest.endswith((SHA, "main", "v1")):
            self._reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
        else:
            files = self.hub.repositories[repository]
            siblings = [_listed(name, content) for name, content in files.items()]
            is_earlier = rest.endswith(SHA) and not self.hub.stubborn
            sha = SHA if is_earlier else self.hub.moved.get(repository, SHA)
            info = {"_id": "1", "id": repository, "sha": sha, "siblings": siblings, "private": False, "tags": []}
            self._reply(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, with_body)

    def _send_file(self, repository: str, name: str, with_body: bool) -> None:
        key = (repository, name)
        content = self.hub.served.get(key, self.hub.repositories[repository][name])
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": SHA}
        start = 0
        if with_body:
            self.hub.fetched.append(key)
            if (asked := self.headers.get("Range")) and not self.hub.ignores_ranges:
                self.hub.ranges[key] = asked
                start = int(asked.removeprefix("bytes=").split("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._reply(206 if start else 200, content[start:], headers, with_body, self.hub.stall.pop(key, None))

    def _reply(
        self, status: int, body: bytes, headers: dict[str, str], with_body: bool, stall: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if not with_body:
            return
        self.wfile.write(body[:stall])
        if stall is not None:
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.go.wait(600)
            self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  as the base class names it
        """Keep the tests quiet."""


def _listed(name: str, content: bytes) -> dict[str, Any]:
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    listed: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git}
    if name.endswith(LARGE):
        listed["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return listed
