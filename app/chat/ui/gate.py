"""ASGI middleware that checks every request before Gradio sees it, and adds headers to every response."""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from ...server.access import Access, Denied
from ...server.guesses import TooManyGuesses
from .login import PATH as LOGIN
from .login import Login
from .uploads import MIB, TooMuch, Uploads

LARGEST_EVENT = 8 * MIB
BODY_S = 120.0  # within which a body must arrive
ANOTHER_PAGE = "Other web pages may not use this one."
READING = ("GET", "HEAD")
API = "/gradio_api"
UPLOAD = f"{API}/upload"
# Paths that the page posts to. Gradio has others, which process recordings or edit the app's own code.
SENDING = (*(f"{API}/{name}" for name in ("queue/join", "run/", "cancel", "reset", "component_server")), UPLOAD, LOGIN)
# Paths that the page reads. Gradio has others: some fetch any address and pass its answer on as if it were the page's.
START = "/"
FOLDERS = ("/assets/", "/static/", f"{API}/heartbeat/")
READABLE = ("startup-events", "queue/data", "upload_progress", "info", "app_id", "theme.css")
FILES = frozenset((START, "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")).union(
    f"{API}/{name}" for name in READABLE
)
ASSETS = "/assets/"  # Gradio's scripts and styles, whose names contain a hash of their content
FOR_EVER = "private, max-age=31536000, immutable"
OPEN = (f"{API}/startup-events",)  # requested by Gradio itself while it starts; tells only whether it has

# Gradio has inline scripts and styles, and compiles the listeners of a page with eval.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "media-src 'self' data: blob:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "frame-src 'none'",
        "frame-ancestors 'none'",
        "form-action 'self'",
        "base-uri 'self'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageGate:
    """ASGI middleware around the whole of Gradio."""

    def __init__(self, app: ASGIApp, access: Access, uploads: Uploads) -> None:
        self._app = app
        self._access = access
        self._uploads = uploads
        self._login = Login(access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # the page needs none
            await WebSocketClose()(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith(ASSETS) and message["status"] == HTTPStatus.OK:
                    headers.setdefault("Cache-Control", FOR_EVER)
            await send(message)

        scope = {**scope, "headers": [(name, value) for name, value in scope["headers"] if not _is_relayed(name)]}
        if scope["method"] not in READING:
            receive = _in_time(receive)
        request = Request(scope, receive)
        refusal = self._refusal(request)
        if refusal is None and scope["path"] not in OPEN:
            refusal = await self._refusal_of_strangers(request)
        if refusal is None and scope["method"] in READING and not _is_of_the_page(scope["path"]):
            refusal = PlainTextResponse("There is nothing at this address.", 404)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
        elif scope["path"] == UPLOAD and scope["method"] == "POST":
            await self._take_files(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        headers, method, path = request.headers, request.method, request.scope["path"]
        try:
            self._access.check(headers)
        except Denied as denied:
            return PlainTextResponse(str(denied) if denied.code == "host" else ANOTHER_PAGE, 403)
        if not _is_own(headers, method, path):
            return PlainTextResponse(ANOTHER_PAGE, 403)
        if method in READING:
            return None
        if method != "POST" or not path.startswith(SENDING):
            return PlainTextResponse("This address does not accept this method.", 405)
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdecimal()) or "transfer-encoding" in headers:
            return PlainTextResponse("The Content-Length is missing.", 411)
        if path != UPLOAD and int(length) > LARGEST_EVENT:
            return PlainTextResponse(f"The body is larger than {LARGEST_EVENT / MIB:g} MiB.", 413)
        return None

    async def _refusal_of_strangers(self, request: Request) -> Response | None:
        try:
            return None if self._login.admits(request) else await self._login.answer(request)
        except TooManyGuesses as error:
            return PlainTextResponse(str(error), 429, error.headers)

    async def _take_files(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._uploads.room_for(int(Headers(scope=scope)["content-length"])):
                await self._app(scope, receive, send)
        except TooMuch as error:
            await PlainTextResponse(str(error), error.status)(scope, receive, send)


def _is_of_the_page(path: str) -> bool:
    return path in FILES or path.startswith(FOLDERS)


def _is_own(headers: Headers, method: str, path: str) -> bool:
    """Whether a request comes from the page itself, or from a person who follows a link to its start.

    Other sites may lead to no other path, since browsers run the scripts of what they navigate to.

    Browsers before 2023 and other programs do not send Sec-Fetch-Site; their cross-site requests have an Origin, which
    `Access` checks.
    """
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return True
    return (
        method in READING
        and path == START
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _is_relayed(name: bytes) -> bool:
    """Whether it is a header of a reverse proxy. No proxy is supported, and Gradio would build its URLs from such
    headers."""
    return name.lower().startswith(b"x-forwarded-") or name.lower() == b"forwarded"


def _in_time(receive: Receive) -> Receive:
    """Treat a body that does not arrive within BODY_S as a disconnect."""
    until, is_whole = time.monotonic() + BODY_S, False

    async def receive_some() -> Message:
        nonlocal is_whole
        if is_whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), until - time.monotonic())
        except asyncio.TimeoutError:
            return {"type": "http.disconnect"}
        is_whole = not message.get("more_body", False)
        return message

    return receive_some
