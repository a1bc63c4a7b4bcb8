"""Admission: middleware that checks access and body size before anything else handles a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import Access, Denied, UnsafeServer, read_keys
from .errors import ApiError
from .guesses import TooManyGuesses, peer_of
from .limits import MIB, Limits
from .metrics import REFUSED, Metrics

__all__ = ["Access", "Gate", "UnsafeServer", "read_keys"]

OPEN = ("/health",)  # paths that need no key
UNREAD = {"Connection": "close"}  # or the connection would wait for the rest of the body


class Gate:
    """ASGI middleware that refuses requests without access, and those whose body is too large or arrives too slowly.

    check_running: raises ApiError once the server is ending, which does not wait for the rest of a body.
    """

    def __init__(
        self, app: ASGIApp, access: Access, limits: Limits, metrics: Metrics, check_running: Callable[[], None]
    ) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._metrics = metrics
        self._check_running = check_running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_access(headers, scope["path"], peer_of(scope.get("client")))
            length = headers.get("content-length", "0")
            self._check_size(int(length) if length.isdecimal() else 0)
        except ApiError as error:
            self._metrics.requests.labels(REFUSED).inc()
            await JSONResponse(error.body, error.status_code, error.headers)(scope, receive, send)
            return
        received, is_whole = 0, False
        until = time.monotonic() + self._limits.body_s

        async def receive_some() -> Message:
            nonlocal received, is_whole
            try:
                message = await asyncio.wait_for(receive(), None if is_whole else until - time.monotonic())
            except asyncio.TimeoutError:
                raise ApiError(
                    408, f"The body did not arrive within {self._limits.body_s:g} s.", "body", headers=UNREAD
                ) from None
            received += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            self._check_size(received)
            if not is_whole:
                self._check_running()
            return message

        await self._app(scope, receive_some, send)

    def _check_access(self, headers: Headers, path: str, peer: str) -> None:
        try:
            self._access.check(headers)
        except Denied as denied:
            raise ApiError(403, str(denied), code=denied.code) from denied
        try:
            is_admitted = path in OPEN or self._access.admits(headers, peer)
        except TooManyGuesses as error:
            raise ApiError(429, str(error), code="too_many_wrong_keys", headers=error.headers) from error
        if not is_admitted:
            raise ApiError(
                401,
                "The API key is missing or wrong: send the header `Authorization: Bearer KEY`.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_size(self, num_bytes: int) -> None:
        most = self._limits.body_bytes
        if num_bytes > most:
            message = f"The body is larger than {most / MIB:g} MiB, the limit."
            raise ApiError(413, message, "body", headers=UNREAD)
