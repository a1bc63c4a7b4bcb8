"""What other machines on the network may try: a page on a foreign interface, keys, cookies, and TLS."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import BrowserContext, expect

from outrider.app.chat.ui.uploads import upload_folder
from outrider.app.cli import main as cli
from outrider.app.server import guesses
from outrider.app.server.access import Access, UnsafeServer
from outrider.app.server.admission import Access as AccessOfServer
from outrider.app.server.tls import BadCertificate, Certificate, certificate_of

from ..commands import OUTRIDER
from ..conftest import free_port
from .conftest import Target, targeted

KEY, OTHER = "0123456789abcdef", "f" * 20
HTML = {"Accept": "text/html,*/*"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A page for every machine that reaches this one."""
    with targeted(tmp_path_factory.mktemp("locked"), "0.0.0.0", keys=(KEY, OTHER), names=("box.example.org",)) as there:
        yield there


@pytest.fixture(autouse=True)
def _guesses_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests come from one address."""
    monkeypatch.setattr(guesses, "MOST_WRONG", 1_000_000)


def log_in(target: Target, key: str = KEY) -> httpx.Response:
    return target.post("/login", data={"key": key}, headers={"Origin": target.url})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.example.org"])
def test_the_page_does_not_start_for_other_machines_without_a_key(tmp_path: Path, host: str) -> None:
    with pytest.raises(UnsafeServer, match="--api-key-file"), targeted(tmp_path, host):
        pass


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/config"), ("GET", "/gradio_api/info"), ("POST", "/gradio_api/queue/join"), ("GET", "/assets/x"),
     ("POST", "/gradio_api/run/predict"), ("POST", "/gradio_api/upload"), ("GET", "/gradio_api/queue/data"),
     ("GET", "/gradio_api/file=/etc/hostname"), ("GET", "/nowhere"), ("GET", "//config"), ("GET", "/LOGIN")],
)  # fmt: skip
def test_without_the_key_nothing_is_answered(locked: Target, method: str, path: str) -> None:
    before = list(upload_folder().rglob("*"))
    for headers in ({}, {"Authorization": f"Bearer {KEY}x"}, {"Cookie": f"outrider-{locked.url[-5:]}={KEY}"}):
        answer = locked.ask(method, path, headers=headers, content=b"")
        assert answer.status_code == 401
        assert "gradio" not in answer.text.lower()
        assert KEY not in answer.text
    assert list(upload_folder().rglob("*")) == before


def test_the_form_is_all_that_a_stranger_sees(locked: Target) -> None:
    answer = locked.get("/", headers=HTML)
    assert answer.status_code == 401
    assert 'name="key"' in answer.text
    assert "gradio" not in answer.text.lower()
    assert "密钥" in locked.get("/", headers={**HTML, "Accept-Language": "zh-CN"}).text


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_the_key_gives_a_cookie_that_opens_the_page(locked: Target, key: str) -> None:
    answer = log_in(locked, key)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    pair, *attributes = answer.headers["set-cookie"].split("; ")
    assert {attribute.lower() for attribute in attributes} == {"httponly", "samesite=strict", "path=/"}
    assert key not in pair
    assert locked.get("/config", headers={"Cookie": pair}).status_code == 200
    assert locked.get("/config", headers={"Cookie": pair[:-1]}).status_code == 401
    assert locked.get("/config", headers={"Authorization": f"Bearer {key}"}).status_code == 200


@pytest.mark.parametrize("key", ["", KEY[:-1], f"{KEY}x", "schlüssel", "\ud800".encode("utf-8", "replace").decode()])
def test_another_key_gives_none(locked: Target, key: str) -> None:
    answer = log_in(locked, key)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_keys_cannot_be_guessed_quickly_and_who_is_logged_in_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guesses, "MOST_WRONG", 10)
    monkeypatch.setattr(guesses, "EVERY_S", 50.0)
    with targeted(tmp_path, keys=(KEY,)) as there:
        cookie = {"Cookie": log_in(there).headers["set-cookie"].partition(";")[0]}
        for number in range(10):
            answers = (log_in(there, "wrong"), there.get("/config", headers={"Authorization": "Bearer wrong"}))
            assert answers[number % 2].status_code == (401 if number < 5 else 429)
        for refused in (log_in(there), there.get("/config", headers={"Authorization": f"Bearer {KEY}"})):
            assert refused.status_code == 429
            assert 0 < int(refused.headers["retry-after"]) <= 50
            assert "set-cookie" not in refused.headers
        assert "Too many wrong keys" in log_in(there).text
        assert there.get("/config", headers=cookie).status_code == 200
        assert there.get("/config").status_code == 401


def test_no_other_page_can_log_a_browser_in(locked: Target) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert locked.post("/login", data={"key": KEY}, headers=headers).status_code == 403


def test_only_names_that_were_given_are_this_machines(locked: Target) -> None:
    for host, status in (("box.example.org:1", 401), ("192.168.1.5", 401), ("evil.example", 403)):
        assert locked.get("/config", headers={"Host": host}).status_code == status
    assert locked.get("/config", headers={"Host": "evil.example"}).text.endswith("--allowed-host.")


@pytest.mark.parametrize("name", ["", "http://box", "box:80", "*", "a b", "box/"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UnsafeServer, match="--allowed-host"):
        Access("127.0.0.1", names=(name,))


def test_the_server_keeps_to_the_same_rules() -> None:
    assert AccessOfServer is Access


@pytest.mark.slow
def test_a_person_logs_in_with_the_key(
    tmp_path: Path, open_context: Callable[..., BrowserContext], make_certificate: Callable[[], Certificate]
) -> None:
    """In a browser, over TLS: the cookie is for TLS only, and nothing is blocked that the page needs."""
    with targeted(tmp_path, keys=(KEY,), certificate=make_certificate()) as target:
        context = open_context(ignore_https_errors=True)
        page = context.new_page()
        page.goto(target.url)
        page.get_by_label("Key").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not the key")
        page.get_by_label("Key").fill(KEY)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#status")).to_contain_text("ready", timeout=60_000)
        (cookie,) = context.cookies()
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Strict")


def test_with_tls_nothing_is_answered_without(tmp_path: Path, make_certificate: Callable[[], Certificate]) -> None:
    certificate = make_certificate()
    with targeted(tmp_path, certificate=certificate) as target:
        context = ssl.create_default_context(cafile=str(certificate.chain))
        assert httpx.get(f"{target.url}/config", verify=context, timeout=60).status_code == 200
        own = {"Origin": target.url.replace("https", "http")}
        assert target.post("/gradio_api/queue/join", headers=own, content=b"").status_code == 403
        with pytest.raises(httpx.TransportError):
            httpx.get(target.url.replace("https", "http"), timeout=60)


@pytest.mark.slow
def test_the_server_speaks_tls_too(tmp_path: Path, make_certificate: Callable[[], Certificate]) -> None:
    certificate = make_certificate()
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    port = str(free_port())
    command = [*OUTRIDER, "serve", "--host", "0.0.0.0", "--port", port, "--api-key-file", keys, "--tls-cert",
               certificate.chain, "--tls-key", certificate.key]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "Ready" not in said:
                said += (line := process.stdout.readline())
                assert line, said
            assert f"https://127.0.0.1:{port}/v1" in said
            context = ssl.create_default_context(cafile=str(certificate.chain))
            with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=60) as client:
                assert client.get("/v1/models").status_code == 401
                key = {"Authorization": f"Bearer {KEY}"}
                assert client.get("/v1/models", headers=key).status_code == 200
                assert client.get("/v1/models", headers={**key, "Host": "evil.example"}).status_code == 403
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--api-key-file"),
        (["--tls-cert", "none.pem", "--tls-key", "none.pem"], "--tls-cert none.pem cannot be read"),
        (["--tls-key", "none.pem"], "belong together"),
        (["--api-key-file", "none"], "The key file none cannot be read"),
        (["--allowed-host", "http://box"], "--allowed-host"),
    ],
)
@pytest.mark.parametrize("name", ["chat", "serve"])
def test_both_commands_refuse_in_one_line_what_is_not_safe(
    name: str,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(cli, "keep_private", lambda: None)  # it would outlive this test
    monkeypatch.setattr("sys.argv", ["outrider", name, *arguments])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_certificates_that_cannot_be_used_are_refused_with_the_option(
    tmp_path: Path, make_certificate: Callable[[], Certificate]
) -> None:
    one, other = make_certificate(), make_certificate()
    with pytest.raises(BadCertificate, match=r"--tls-cert .* cannot be read"):
        certificate_of(tmp_path / "none.pem", one.key)
    with pytest.raises(BadCertificate, match=r"--tls-key .* cannot be read"):
        certificate_of(one.chain, tmp_path)
    with pytest.raises(BadCertificate, match="not a certificate and its key"):
        certificate_of(one.chain, other.key)
    with pytest.raises(BadCertificate, match="belong together"):
        certificate_of(one.chain, None)
    assert certificate_of(None, None) is None
    assert certificate_of(one.chain, one.key) == one
