"""The login with an API key, after which the browser has a session cookie."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping
from html import escape
from types import MappingProxyType
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from ...server.access import Access
from ...server.guesses import TooManyGuesses, peer_of
from ..i18n.translations import Words, language_of

PATH = "/login"
MOST_BROWSERS = 200  # logged in at the same time; one more logs out the first
MOST_BYTES = 4096  # of the form
STYLE = """
body { font: 16px system-ui, sans-serif; max-width: 22rem; margin: 20vh auto; padding: 0 1rem }
:root { color-scheme: light dark }
input, button { font: inherit; width: 100%; box-sizing: border-box; margin-top: .5rem; padding: .5rem }
"""


class Login:
    """Keeps the sessions in memory. The cookie is a random token, valid until the server ends."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._tokens: deque[str] = deque(maxlen=MOST_BROWSERS)

    def admits(self, request: Request) -> bool:
        """Whether a request has a valid key or cookie, or needs none. Raises TooManyGuesses."""
        if self._access.admits(request.headers, _peer(request)):
            return True
        sent = request.cookies.get(_cookie(request), "").encode()
        # All of them are compared, so that the time reveals nothing.
        matches = [secrets.compare_digest(sent, token.encode()) for token in self._tokens]
        return any(matches)

    async def answer(self, request: Request) -> Response:
        """The response to a request without a session: the form for a browser, its result, or status 401."""
        if request.scope["path"] == PATH and request.method == "POST":
            return await self._log_in(request)
        if request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", ""):
            return _form(request)
        return PlainTextResponse("Log in first.", 401, {"WWW-Authenticate": "Bearer"})

    async def _log_in(self, request: Request) -> Response:
        if int(request.headers["content-length"]) > MOST_BYTES:
            return PlainTextResponse("The form is too large.", 413)
        try:
            body = await request.body()
        except ClientDisconnect:
            return PlainTextResponse("The form did not arrive.", 408)
        given = parse_qs(body.decode("latin-1")).get("key", [""])[0]
        try:
            if not self._access.has_key(given.strip().encode("utf-8", "replace"), _peer(request)):
                return _form(request, "login_wrong")
        except TooManyGuesses as error:
            return _form(request, "login_wait", 429, error.headers)
        token = secrets.token_urlsafe(32)
        self._tokens.append(token)
        answer = RedirectResponse("/", 303)
        is_secure = self._access.scheme == "https"
        answer.set_cookie(_cookie(request), token, httponly=True, samesite="strict", secure=is_secure)
        return answer


def _cookie(request: Request) -> str:
    """With the port in its name, since browsers share cookies between the ports of a host."""
    server = request.scope.get("server")
    return f"outrider-{server[1] if server else ''}"


def _peer(request: Request) -> str:
    return peer_of(request.scope.get("client"))


def _form(
    request: Request, fault: str = "", status: int = 401, headers: Mapping[str, str] = MappingProxyType({})
) -> Response:
    """The form. `fault` is the key of a phrase that says what was wrong."""
    language = language_of(request.headers.get("accept-language", ""))
    words = Words(language)
    wrong = f'<p role="alert">{escape(words(fault))}</p>' if fault else ""
    page = f"""<!doctype html>
<html lang="{language}">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Outrider</title>
<style>{STYLE}</style></head>
<body><main><h1>Outrider</h1>{wrong}
<form method="post" action="{PATH}">
<label for="key">{escape(words("login_key"))}</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button>{escape(words("login"))}</button>
</form></main></body></html>
"""
    # With "no-referrer", browsers send the form with the Origin "null", as if it came from another page.
    return HTMLResponse(page, status, {**headers, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"})
