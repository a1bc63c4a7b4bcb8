"""Access: who may ask the server, and from which web pages."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.pipelines import OutriderError

from .errors import ApiError
from .limits import MIB, Limits
from .metrics import REFUSED, Metrics

SHORTEST_KEY = 16  # characters
OPEN = ("/health",)  # what may be asked without a key
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class UnsafeServer(OutriderError):
    """The server was told to listen in a way that would let strangers in."""


@dataclass(frozen=True, slots=True)
class Access:
    """Raises UnsafeServer where it would let anybody in, or names an origin that is none.

    host: the address to listen on.
    keys: each opens the server; without one, only this machine is let in, so `host` has to be its own.
    origins: web pages that may ask from a browser, as "https://example.org"; "*" for all.
    """

    host: str
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.keys and not self.is_local:
            raise UnsafeServer(
                f"--host {self.host} lets other machines in, and nothing would keep them from using the model: give "
                "--api-key-file with a file that holds a key, or listen on 127.0.0.1."
            )
        for origin in self.origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise UnsafeServer(
                    f"--cors-origin {origin!r} is no origin: give scheme, host and port, such as http://localhost:3000."
                )

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self, headers: Mapping[str, str], path: str) -> None:
        """Raises ApiError where a request must not be served."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.is_local and _name(host).lower() not in {*LOCAL_NAMES, self.host}:
            raise ApiError(403, "The Host header does not name this machine: ask for http://127.0.0.1.", code="host")
        if origin is not None and not {origin, "*"}.intersection(self.origins) and origin != f"http://{host}":
            raise ApiError(
                403, "Web pages of this origin may not use the server: start it with --cors-origin.", code="origin"
            )
        if self.keys and path not in OPEN and not self._has_key(headers.get("authorization", "")):
            raise ApiError(
                401,
                "The API key is missing or wrong: send the header `Authorization: Bearer KEY`.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _has_key(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        sent = given.strip().encode("latin-1", "replace")
        matches = [hmac.compare_digest(sent, key.encode()) for key in self.keys]  # all, so that the time tells nothing
        return scheme.lower() == "bearer" and any(matches)


class Gate:
    """ASGI middleware: refuses what `Access` or the limits on bodies refuse, before anything else looks at it."""

    def __init__(self, app: ASGIApp, access: Access, limits: Limits, metrics: Metrics) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._access.check(headers, scope["path"])
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
                raise ApiError(408, f"The body did not arrive within {self._limits.body_s:g} s.", "body") from None
            received += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            self._check_size(received)
            return message

        await self._app(scope, receive_some, send)

    def _check_size(self, num_bytes: int) -> None:
        most = self._limits.body_bytes
        if num_bytes > most:
            raise ApiError(413, f"The body is larger than {most / MIB:g} MiB, the most that is read.", "body")


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in a file, one a line. Raises UnsafeServer where it cannot be read, or a key could be guessed."""
    advice = 'python -c "import secrets; print(secrets.token_urlsafe(32))" makes a good one.'
    try:
        keys = tuple(_keys(path.read_text(encoding="ascii").splitlines()))
    except (OSError, ValueError) as error:
        raise UnsafeServer(f"The key file {path} cannot be read ({error}): give a text file with a key.") from error
    if not keys:
        raise UnsafeServer(f"The key file {path} holds no key: write one into it. {advice}")
    if shortest := [key for key in keys if len(key) < SHORTEST_KEY]:
        raise UnsafeServer(
            f"The key file {path} holds a key of {len(shortest[0])} characters: a key needs {SHORTEST_KEY} or more. "
            f"{advice}"
        )
    return keys


def _keys(lines: Iterable[str]) -> Iterable[str]:
    return (line.strip() for line in lines if line.strip())


def _name(host: str) -> str:
    """The host of a Host header, without port and brackets."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.rpartition(":")[0] or host
