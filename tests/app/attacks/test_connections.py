"""Clients that keep connections without using them: each is ended in time, and others are served meanwhile."""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event

import httpx
import pytest
from pydantic import BaseModel

from outrider.app.server import api, serve
from outrider.app.server.limits import Limits
from outrider.pipelines import LLMPipeline

from ..server.serving import LOCAL, MODEL, Served, running, wait_until
from .conftest import Target, targeted

ASKED = {"model": MODEL, "prompt": "x", "max_tokens": 2}
POST = f"POST /v1/completions HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Type: application/json\r\n"
LIMITS = Limits(connections=4, head_s=0.3, stall_s=0.3)


@dataclass(frozen=True, slots=True)
class Place:
    """A server or a page, and a path that it answers with a JSON object."""

    port: int
    path: str

    @property
    def url(self) -> str:
        return f"http://{LOCAL}:{self.port}{self.path}"

    @property
    def head(self) -> str:
        """A request for the path, without the empty line at its end."""
        return f"GET {self.path} HTTP/1.1\r\nHost: {LOCAL}\r\n"

    def answers(self) -> bool:
        try:
            return httpx.get(self.url, timeout=30).status_code == 200
        except httpx.TransportError:  # too many connections to be told so
            return False


@pytest.fixture(scope="module")
def _hasty(tool_pipeline: LLMPipeline) -> Iterator[Served]:
    with running(tool_pipeline, LIMITS) as served:
        yield served


@pytest.fixture
def hasty(_hasty: Served) -> Iterator[Served]:
    yield _hasty
    wait_until(lambda: answers(_hasty))


@pytest.fixture(scope="module")
def _hasty_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with targeted(tmp_path_factory.mktemp("page"), connections=LIMITS) as target:
        yield target


@pytest.fixture(params=["server", "page"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "server":
        place = Place(request.getfixturevalue("_hasty").port, "/health")
    else:
        target = request.getfixturevalue("_hasty_page")
        place = Place(int(target.url.rpartition(":")[2]), "/gradio_api/app_id")
    yield place
    wait_until(place.answers)


class Chunk(BaseModel):
    text: str = ""


def connected(served: Served | Place) -> socket.socket:
    return socket.create_connection((LOCAL, served.port), timeout=30)


def dripped(connection: socket.socket, data: bytes) -> bytes:
    """What comes back where one byte is sent after the other for ever, until the connection is closed."""
    connection.settimeout(0.02)
    answer = b""
    began = time.monotonic()
    while time.monotonic() - began < 30:
        try:
            connection.sendall(data)
            if not (received := connection.recv(65536)):
                return answer
            answer += received
        except TimeoutError:
            continue
        except OSError:
            return answer
    raise AssertionError("the connection is still open")


def is_answered(connection: socket.socket) -> bool:
    """Whether the answer that comes is a JSON object with status 200, which is read to its end."""
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(65536)
    return answer.startswith(b"HTTP/1.1 200 ")


def answers(served: Served) -> bool:
    try:
        return served.post("/v1/completions", ASKED).status_code == 200
    except httpx.TransportError:  # too many connections to be told so
        return False


def test_half_a_head_is_not_waited_for(place: Place) -> None:
    with connected(place) as connection:
        connection.sendall(place.head.encode())
        answer = dripped(connection, b"x").decode()
    assert answer.startswith("HTTP/1.1 408 ")
    assert "0.3 s" in json.loads(answer.partition("\r\n\r\n")[2])["error"]["message"]
    assert place.answers()


def test_a_head_that_comes_slowly_behind_an_answer_is_not_waited_for(place: Place) -> None:
    with connected(place) as connection:
        connection.sendall(f"{place.head}\r\n".encode())
        assert is_answered(connection)
        assert dripped(connection, b"G").startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_asks_nothing_is_closed(place: Place) -> None:
    with connected(place) as connection:
        assert connection.recv(1) == b""


def test_a_body_that_nobody_waits_for_keeps_no_connection(place: Place) -> None:
    with connected(place) as connection:
        connection.sendall(f"POST /nowhere HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Length: 1000000\r\n\r\n".encode())
        assert dripped(connection, b"x").startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))


def test_a_malformed_body_that_nobody_waits_for_ends_the_connection_and_no_error_is_logged(
    hasty: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(hasty) as connection:
        connection.sendall(f"POST /nowhere HTTP/1.1\r\nHost: {LOCAL}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        answer = connection.recv(65536)
        while not answer.endswith(b"}"):  # of its body
            answer += connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 404 ")
        connection.sendall(b"no size\r\n")
        assert connection.recv(65536) == b""
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_a_head_in_several_parts_is_answered(place: Place) -> None:
    with connected(place) as connection:
        for _ in range(3):
            for part in (place.head[:9], place.head[9:], "\r\n"):
                connection.sendall(part.encode())
                time.sleep(0.02)
            assert is_answered(connection)


def test_a_long_answer_is_not_taken_for_a_slow_head(hasty: Served) -> None:
    asked = {"model": MODEL, "prompt": "x = [", "max_tokens": 250, "temperature": 0, "speculation": "off"}
    assert hasty.post("/v1/completions", asked).status_code == 200


def test_who_stops_reading_a_stream_is_dropped_and_the_answer_ends(
    hasty: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event is made large, so that the buffers of the system fill up within one answer."""
    from outrider.app.server import events

    json_of = events.BaseModel.model_dump_json
    monkeypatch.setattr(events.BaseModel, "model_dump_json", lambda model, **o: json_of(model, **o) + " " * (1 << 20))
    asked = {"model": MODEL, "prompt": 'return f"{self.__class__.__name__}(' * 3, "max_tokens": 1900, "temperature": 0,
             "speculation": "off", "stream": True}  # fmt: skip
    body = json.dumps(asked)
    with connected(hasty) as connection:
        connection.sendall(f"{POST}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        connection.recv(1)
        wait_until(lambda: hasty.pool.num_free < hasty.pool.num_blocks)  # the head comes before the first pass
        wait_until(lambda: hasty.server.worker.num_open == 0)
        wait_until(lambda: hasty.pool.num_free == hasty.pool.num_blocks)
        wait_until(lambda: hasty.metric('outrider_requests_total{outcome="cancelled"}') == 1)
    monkeypatch.undo()
    assert answers(hasty)


def test_who_does_not_read_ends_the_server_late_and_nothing_is_logged(
    tool_pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def chunks(*_: object) -> AsyncIterator[BaseModel]:
        while True:
            yield Chunk(text=" " * (1 << 20))

    monkeypatch.setattr(api, "_chunks", chunks)
    monkeypatch.setattr(serve, "GRACE_S", 0.1)
    body = json.dumps({**ASKED, "stream": True})
    with ExitStack() as kept, running(tool_pipeline) as served:
        logger = logging.getLogger("uvicorn.error")
        logger.addHandler(caplog.handler)
        kept.callback(logger.removeHandler, caplog.handler)
        connection = kept.enter_context(connected(served))
        connection.sendall(f"{POST}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        connection.recv(1)
    assert caplog.messages == []


def test_nothing_is_written_to_a_connection_that_was_reset(
    hasty: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client goes away while the server is busy, which then has many events to send at once."""
    gone, is_over = Event(), Event()

    async def chunks(*_: object) -> AsyncIterator[BaseModel]:
        yield Chunk()
        gone.wait(30)
        try:
            for _ in range(20):
                yield Chunk()
        finally:
            is_over.set()

    monkeypatch.setattr(api, "_chunks", chunks)
    body = json.dumps({**ASKED, "stream": True})
    with connected(hasty) as connection:
        connection.sendall(f"{POST}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
    gone.set()
    assert is_over.wait(30)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    monkeypatch.undo()


def test_more_connections_than_allowed_are_told_so_and_served_again_later(place: Place) -> None:
    with ExitStack() as opened:
        for _ in range(4):
            connection = opened.enter_context(connected(place))
            connection.sendall(f"{place.head}\r\n".encode())
            assert is_answered(connection)
        refused = httpx.get(place.url, timeout=30)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        error = refused.json()["error"]
        assert error["code"] == "too_many_connections"
        assert "4 connections" in error["message"]
    wait_until(lambda: place.answers())


def test_a_flood_of_connections_is_bounded_and_over_when_it_ends(place: Place) -> None:
    with ExitStack() as opened:
        flood = [opened.enter_context(connected(place)) for _ in range(200)]
        ended = 0
        for connection in flood[140:]:
            try:
                ended += connection.recv(1) == b""
            except ConnectionResetError:
                ended += 1
        assert ended == 60
        wait_until(lambda: place.answers())
