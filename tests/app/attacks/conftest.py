"""A page and a server as the commands serve them, to be attacked over HTTP."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.launch import open_page
from outrider.app.chat.store.history import History
from outrider.app.server.tls import Certificate
from outrider.pipelines import LLMPipeline

from ..chat.scripted import ScriptedPipeline
from ..conftest import free_port
from ..server.serving import MODEL
from ..server.tools import pair_with_tools

PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Target:
    """A served page and what it keeps."""

    url: str
    history: History

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """What a program sends. The path is sent as it stands, which httpx would tidy."""
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S, verify=False) as client:
            request = client.build_request(method, "/", **options)
            request.url = request.url.copy_with(raw_path=path.encode())
            return client.send(request)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.ask("POST", path, **options)

    def upload(self, *files: tuple[str, bytes], **options: Any) -> httpx.Response:
        parts = [("files", (name, content, "text/plain")) for name, content in files]
        return self.post("/gradio_api/upload", files=parts, **options)


@contextmanager
def targeted(folder: Path, host: str = "127.0.0.1", **options: Any) -> Iterator[Target]:
    """Serve a page until the end of the block."""
    pipeline = ScriptedPipeline()
    pipeline.warm.set()
    port = free_port()
    history = History(folder / "history.sqlite")
    page = open_page(Assistant(pipeline, "scripted", None, folder / "pairs"), history, host, port, **options)
    scheme = "https" if options.get("certificate") else "http"
    try:
        yield Target(f"{scheme}://127.0.0.1:{port}", history)
    finally:
        page.blocks.close(verbose=False)
        page.history.close()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The page as it is served by default: on this machine, without a key."""
    with targeted(tmp_path_factory.mktemp("page")) as target:
        yield target


@dataclass
class Evil:
    """Another server. `asked` is what reached it."""

    url: str
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def evil() -> Iterator[Evil]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<script>alert(1)</script>")

        do_POST = do_GET  # noqa: N815

        def log_message(self, *said: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    there = Evil(f"http://localhost:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield there
    server.shutdown()
    server.server_close()


async def local_address(host: str) -> str:
    """Stands in for `safehttpx.async_validate_url`, which refuses what is not a public address."""
    return "127.0.0.1"


@pytest.fixture(scope="session")
def make_certificate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Certificate]:
    """A self-signed certificate for this machine."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl here to make a certificate with")

    def make() -> Certificate:
        folder = tmp_path_factory.mktemp("tls")
        chain, key = folder / "cert.pem", folder / "key.pem"
        subprocess.run(
            [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
             "-keyout", key, "-out", chain],
            check=True, capture_output=True,
        )  # fmt: skip
        return Certificate(chain, key)

    return make


@pytest.fixture(scope="session")
def tool_pipeline(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> LLMPipeline:
    """The server's, loaded once; its chat template knows tools."""
    pipeline = LLMPipeline(pair_with_tools(embedded_pair, tmp_path_factory.mktemp("tools") / MODEL), exact=True)
    pipeline.warm_up()
    return pipeline
