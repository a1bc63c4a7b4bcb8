"""While the model loads, clients are told so at once."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from outrider.app.load_options import LoadOptions
from outrider.app.server.access import Access
from outrider.app.server.address import bound_socket
from outrider.app.server.limits import Limits
from outrider.app.server.loading import told_to_wait
from outrider.app.server.serve import serve

from .serving import LOCAL
from .test_serve import free_port

HASTE_S = 5


def test_health_and_all_other_paths_tell_that_the_model_is_loading() -> None:
    with bound_socket(LOCAL, 0) as bound, told_to_wait(bound, Limits()):
        url = f"http://{LOCAL}:{bound.getsockname()[1]}"
        health = httpx.get(f"{url}/health", timeout=HASTE_S)
        assert (health.status_code, health.json()) == (503, {"status": "loading", "exact": None})
        assert httpx.head(f"{url}/health", timeout=HASTE_S).status_code == 503
        asked = {"model": "pyscout", "prompt": "x" * 1_000_000}
        for refused in (
            httpx.post(f"{url}/v1/completions", json=asked, timeout=HASTE_S),
            httpx.post(f"{url}/health", timeout=HASTE_S),
            httpx.get(f"{url}/v1/models", timeout=HASTE_S),
        ):
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
            assert int(refused.headers["Retry-After"]) > 0


def test_who_connects_before_the_next_server_has_begun_waits_for_it() -> None:
    with bound_socket(LOCAL, 0) as bound:
        with told_to_wait(bound, Limits()):
            pass
        with socket.create_connection(bound.getsockname(), timeout=HASTE_S) as client:
            client.sendall(b"GET")
            bound.settimeout(HASTE_S)
            with bound.accept()[0] as accepted:
                assert accepted.recv(3) == b"GET"


def test_a_client_that_keeps_its_connection_does_not_delay_the_server() -> None:
    with bound_socket(LOCAL, 0) as bound, socket.socket() as idle:
        with told_to_wait(bound, Limits()):
            idle.settimeout(HASTE_S)
            idle.connect(bound.getsockname())
            idle.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Length: 9\r\n\r\n".encode())
            assert b"503" in idle.recv(99)
        while idle.recv(999):
            pass


def test_a_server_answers_from_the_moment_that_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    class Loaded(Exception):
        pass

    def load(options: LoadOptions, pair: Path) -> None:
        told = httpx.get(f"http://{LOCAL}:{port}/health", timeout=HASTE_S)
        raise Loaded(told.json()["status"])

    monkeypatch.setattr(LoadOptions, "load", load)
    monkeypatch.setattr("outrider.app.server.serve.Pair.open", lambda pair: pair)
    with pytest.raises(Loaded, match="loading"):
        serve(tmp_path, LoadOptions(), Access(LOCAL), port, Limits())
