"""Who is let in: keys, Host and Origin headers, addresses that need a key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from outrider.app.server.admission import Access, UnsafeServer, read_keys
from outrider.app.server.guesses import Guesses
from outrider.pipelines import LLMPipeline

from .serving import LOCAL, MODEL, Served, running

KEY, OTHER = "k" * 16, "0123456789abcdef0123"
PAGE = "http://localhost:3000"


@pytest.fixture(scope="module")
def locked(pipeline: LLMPipeline) -> Iterator[Served]:
    forgetful = Guesses(itertools.count(0, 60).__next__)
    with running(pipeline, access=Access(LOCAL, (KEY, OTHER), (PAGE,), guesses=forgetful)) as served:
        yield served


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_each_key_opens(locked: Served, key: str) -> None:
    with locked.client(api_key=key) as client:
        assert client.completions.create(model=MODEL, prompt="x", max_tokens=1).choices


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY, f"Bearer {KEY} {KEY}",
     "Bearer \xff"],
)  # fmt: skip
def test_everything_else_does_not(locked: Served, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nowhere"):
        answer = locked.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert KEY not in answer.text
    assert locked.get("/health", headers=headers).status_code == 200


def test_openais_client_calls_it_an_authentication_error(locked: Served) -> None:
    with locked.client(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_a_named_page_may_ask_and_others_may_not(locked: Served) -> None:
    key = {"Authorization": f"Bearer {KEY}"}
    answer = locked.get("/v1/models", headers={"Origin": PAGE, **key})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"}  # fmt: skip
    # A browser asks first, and does not send the key with that.
    preflight = httpx.options(f"{locked.url}/v1/chat/completions", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    other = locked.get("/v1/models", headers={"Origin": "https://example.org", **key})
    assert other.status_code == 403
    assert "access-control-allow-origin" not in other.headers


def test_a_named_page_on_a_public_network_may_ask_and_others_may_not(locked: Served) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true"}
    url = f"{locked.url}/v1/chat/completions"
    preflight = httpx.options(url, headers={"Origin": PAGE, **asked})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-private-network"] == "true"
    other = httpx.options(url, headers={"Origin": "https://example.org", **asked})
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers


def test_without_named_pages_none_may_ask(served: Served) -> None:
    answer = served.get("/v1/models", headers={"Origin": PAGE})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert served.get("/v1/models", headers={"Origin": served.url}).status_code == 200


@pytest.mark.parametrize("host", ["example.org", "example.org:8000", "127.0.0.1.example.org", "localhost.example", ""])
def test_a_name_that_was_bound_to_this_machine_is_refused(served: Served, host: str) -> None:
    answer = served.get("/v1/models", headers={"Host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "[::1]"])
def test_the_names_of_this_machine_are_known(served: Served, host: str) -> None:
    assert served.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_addresses_need_a_key(host: str) -> None:
    with pytest.raises(UnsafeServer, match="--api-key-file"):
        Access(host)
    assert not Access(host, (KEY,)).is_local


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_those_of_this_machine_need_none(host: str) -> None:
    assert Access(host).is_local


def test_what_is_no_origin_is_refused() -> None:
    for origin in ("localhost", "http://localhost/", "", "null"):
        with pytest.raises(UnsafeServer, match="not an origin"):
            Access(LOCAL, origins=(origin,))


def test_a_key_file_holds_a_key_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n\n  {OTHER}  \n")
    assert read_keys(path) == (KEY, OTHER)
    for content in ("", "\n", "short\n", "schlüssel-schlüssel\n"):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UnsafeServer, match="key"):
            read_keys(path)
    with pytest.raises(UnsafeServer, match="cannot be read"):
        read_keys(tmp_path / "none")
