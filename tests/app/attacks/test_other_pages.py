"""What a web page of somebody else may try from a browser on this machine."""

from __future__ import annotations

import re
import socket

import pytest
import safehttpx

from outrider.app.chat.ui.gate import HEADERS

from .conftest import Evil, Target, local_address

EVIL = "http://evil.example"
ROUTES = [
    ("GET", "/"),
    ("GET", "/config"),
    ("GET", "/theme.css"),
    ("GET", "/gradio_api/info"),
    ("GET", "/gradio_api/queue/data?session_hash=x"),
    ("GET", "/gradio_api/heartbeat/x"),
    ("GET", "/gradio_api/file=/etc/hostname"),
    ("GET", "/static/img/logo_nosize.svg"),
    ("POST", "/gradio_api/queue/join"),
    ("POST", "/gradio_api/run/predict"),
    ("POST", "/gradio_api/upload"),
    ("POST", "/gradio_api/cancel"),
    ("POST", "/login"),
    ("OPTIONS", "/gradio_api/queue/join"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_name_that_was_bound_to_this_machine_opens_nothing(target: Target, method: str, path: str) -> None:
    for host in ("evil.example", "evil.example:7860", "127.0.0.1.evil.example", "", "127.0.0.1:1/x?", "a@localhost"):
        answer = target.ask(method, path, headers={"Host": host, "Origin": f"http://{host}"}, content=b"")
        assert answer.status_code == 403
        assert "does not name this machine" in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:7860", "LOCALHOST"])
def test_the_names_of_this_machine_open_the_page(target: Target, host: str) -> None:
    assert target.get("/config", headers={"Host": host}).status_code == 200


def test_relays_headers_do_not_change_the_addresses_in_the_page(target: Target) -> None:
    headers = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "Forwarded": "host=evil.example"}
    assert "evil.example" not in target.get("/", headers=headers).text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ],
)
def test_other_pages_can_neither_post_nor_upload(target: Target, headers: dict[str, str]) -> None:
    for path in ("/gradio_api/queue/join", "/gradio_api/run/predict", "/gradio_api/cancel"):
        assert target.post(path, json={"data": [], "fn_index": 0}, headers=headers).status_code == 403
    assert target.upload(("a.txt", b"hello"), headers=headers).status_code == 403


def test_other_pages_can_link_to_the_page_and_neither_show_nor_read_it(target: Target) -> None:
    there = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    linked = target.get("/", headers={**there, "Sec-Fetch-Dest": "document"})
    assert linked.status_code == 200
    assert "access-control-allow-origin" not in linked.headers
    assert target.get("/", headers={**there, "Sec-Fetch-Dest": "iframe"}).status_code == 403
    shown = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    assert target.get("/static/img/logo_nosize.svg", headers=shown).status_code == 403
    asked = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    preflight = target.ask("OPTIONS", "/gradio_api/queue/join", headers=asked)
    assert preflight.status_code == 403
    assert "access-control-allow-origin" not in preflight.headers


@pytest.mark.parametrize("path", ["/config", "/assets/x", "/gradio_api/info", "/gradio_api/file=x", "/nowhere"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_pages_lead_only_to_the_start_of_the_page(target: Target, path: str, site: str) -> None:
    there = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert target.get(path, headers=there).status_code == 403
    assert target.get("/?__theme=dark", headers=there).status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["file={evil}/x.png", "%66ile={evil}/x.png", "proxy={evil}/x.png", "file/{evil}/x"])
def test_the_page_fetches_nothing_from_elsewhere(
    target: Target, evil: Evil, monkeypatch: pytest.MonkeyPatch, path: str, method: str
) -> None:
    """Gradio would pass on what it gets, with the type that the other server gives it."""
    monkeypatch.setattr(safehttpx, "async_validate_url", local_address)
    answer = target.ask(method, f"/gradio_api/{path.format(evil=evil.url)}")
    assert answer.status_code == 404
    assert "<script>" not in answer.text
    assert evil.asked == []


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/deep_link", "/gradio_api/custom_component/x/client/component/x.js", "/gradio_api/vibe-code",
     "/gradio_api/runs", "/gradio_api/stream/x/1/2/playlist-file", "/monitoring", "/monitoring/summary", "/svelte/x.js",
     "/gradio_api/call/predict/x", "/gradio_api/queue/status", "/gradio_api/openapi.json", "/pwa_icon",
     "/gradio_api/dev/reload", "/gradio_api/user", "/gradio_api/token", "/config/", "//config", "/nowhere"],
)  # fmt: skip
def test_what_the_page_does_not_read_is_not_there(target: Target, path: str) -> None:
    answer = target.get(path)
    assert (answer.status_code, answer.text) == (404, "There is nothing at this address.")


def test_the_page_itself_and_programs_on_this_machine_get_through(target: Target) -> None:
    own = {"Origin": target.url, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    assert target.upload(("a.txt", b"hello"), headers=own).status_code == 200
    assert target.upload(("a.txt", b"hello")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/config", "/theme.css", "/nowhere", "/gradio_api/file=/etc/hostname"])
def test_every_response_says_what_browsers_may_do_with_it(target: Target, path: str) -> None:
    for headers in ({}, {"Host": "evil.example"}):
        answer = target.get(path, headers=headers)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    for part in ("default-src 'self'", "connect-src 'self'", "img-src 'self' data: blob:", "frame-ancestors 'none'"):
        assert part in HEADERS["Content-Security-Policy"]


def test_browsers_keep_scripts_named_by_their_content_and_ask_for_all_else_again(target: Target) -> None:
    (script, *_) = re.findall(r"assets/[\w.-]+\.js", target.get("/").text)
    assert "immutable" in target.get(f"/{script}").headers["Cache-Control"]
    for path in ("/", "/config", "/theme.css", f"/{script}.map", f"/{script}x"):
        assert "immutable" not in target.get(path).headers.get("Cache-Control", "")


@pytest.mark.parametrize("path", ["/gradio_api/vibe-edit/", "/gradio_api/process_recording", "/gradio_api/stream/x"])
def test_what_gradio_offers_beside_the_page_is_closed(target: Target, path: str) -> None:
    assert target.post(path, json={}).status_code == 405


def test_web_sockets_are_refused(target: Target) -> None:
    port = int(target.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(
            f"GET /gradio_api/queue/join HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            .encode()
        )  # fmt: skip
        assert not connection.recv(100).startswith(b"HTTP/1.1 101")
