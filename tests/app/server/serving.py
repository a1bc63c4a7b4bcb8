"""A real server in a thread of its own, on a free port of this machine."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from outrider.app.server.address import bound_socket
from outrider.app.server.admission import Access
from outrider.app.server.api import Server, create_api
from outrider.app.server.limits import Limits
from outrider.app.server.protocol import config_of
from outrider.app.server.serve import GRACE_S, _Web
from outrider.pipelines import LLMPipeline

MODEL = "pyscout"
AREA = "def area(width, height):\n    return width * height"
REPEAT = f"Repeat this function:\n{AREA}"
PATIENCE_S = 60  # for a slow machine that has other work
LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    server: Server

    @property
    def pipeline(self) -> LLMPipeline:
        return self.server.pipeline

    @property
    def pool(self) -> Any:
        return self.pipeline.speculation._pool

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> openai.OpenAI:
        """OpenAI's own client; it does not try again, so that a test sees every refusal."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": PATIENCE_S, **options}
        )

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=PATIENCE_S, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=PATIENCE_S, **options)

    def metric(self, name: str) -> float:
        """One value of /metrics, 0 where it has none yet."""
        lines = (line.rsplit(" ", 1) for line in self.get("/metrics").text.splitlines())
        return next((float(line[1]) for line in lines if line[0] == name), 0.0)


@contextmanager
def running(
    pipeline: Any, limits: Limits | None = None, access: Access | None = None, name: str = MODEL
) -> Iterator[Served]:
    """Serve a pipeline until the end of the block."""
    limits = limits or Limits()
    server = Server.of(pipeline, name, limits)
    api = create_api(server, access or Access(LOCAL))
    web = _Web(config_of(api, limits, timeout_graceful_shutdown=3 * GRACE_S), server.worker)  # as `serve` has it
    with bound_socket(LOCAL, 0) as bound:
        thread = threading.Thread(target=web.run, args=([bound],))
        thread.start()
        try:
            served = Served(f"http://{LOCAL}:{bound.getsockname()[1]}", server)
            wait_until(lambda: server.worker.ready or server.worker.failure is not None or not thread.is_alive())
            yield served
        finally:
            server.worker.end_answers()
            web.should_exit = True
            thread.join(PATIENCE_S)
            if thread.is_alive():
                faulthandler.dump_traceback()
                state = web.server_state
                pytest.fail(f"The server does not end. Connections: {state.connections}; tasks: {state.tasks}")


def wait_until(holds: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.005)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]
