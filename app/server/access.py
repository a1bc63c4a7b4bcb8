"""Access: which clients and which web pages may use the server or open the chat page."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outrider.pipelines import OutriderError

from .guesses import Guesses

SHORTEST_KEY = 16  # characters
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class UnsafeServer(OutriderError):
    """The options would let strangers use the server."""


class Denied(OutriderError):
    """A request that must be refused. `code` is "host" or "origin"."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Access:
    """Who may send requests.

    host: the address to listen on.
    keys: the API keys, any of which grants access. Without keys, `host` must be a loopback address.
    origins: origins of web pages that may send requests from a browser, such as "https://example.org"; "*" for all.
    names: further host names of this machine. Requests to other names are refused, which stops DNS rebinding: a web
        page whose own name resolves to this machine.
    scheme: "http", or "https" with TLS.
    guesses: the wrong keys that came.

    Raises UnsafeServer if anybody on the network would have access, or if an origin or a name is malformed.
    """

    host: str
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    scheme: str = "http"
    guesses: Guesses = field(default_factory=Guesses, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.keys and not self.is_local:
            raise UnsafeServer(
                f"--host {self.host} would let any machine on the network use the model: require a key with "
                "--api-key-file, or listen on 127.0.0.1."
            )
        for origin in self.origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise UnsafeServer(
                    f"--cors-origin {origin!r} is not an origin: give scheme, host and port, such as "
                    "http://localhost:3000."
                )
        for name in self.names:
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name):
                raise UnsafeServer(
                    f"--allowed-host {name!r} is not a host name: give it without scheme and port, such as "
                    "box.example.org."
                )

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises Denied if the Host header names another machine, or if the Origin is not allowed."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(_name(host).lower()):
            advice = "http://127.0.0.1." if self.is_local else "its address, or start it with --allowed-host."
            raise Denied(f"The Host header does not name this machine: use {advice}", "host")
        if origin is not None and not {origin, "*"}.intersection(self.origins) and origin != f"{self.scheme}://{host}":
            raise Denied("Web pages of this origin may not use the server: allow it with --cors-origin.", "origin")

    def admits(self, headers: Mapping[str, str], peer: str) -> bool:
        """Whether a request with these headers has a valid key, or needs none. Raises TooManyGuesses."""
        if not self.keys:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.has_key(given.strip().encode("latin-1", "replace"), peer)

    def has_key(self, sent: bytes, peer: str) -> bool:
        """Whether it is a key. Raises TooManyGuesses if too many wrong ones came from `peer`."""
        self.guesses.check(peer)
        matches = [hmac.compare_digest(sent, key.encode()) for key in self.keys]  # with all of them, in constant time
        if not any(matches):
            self.guesses.note_wrong(peer)
        return any(matches)

    def _is_ours(self, name: str) -> bool:
        if name in {*LOCAL_NAMES, self.host.lower(), *(known.lower() for known in self.names)}:
            return True
        if self.is_local:
            return False
        own = socket.gethostname().lower()
        return name in {own, f"{own}.local"} or _is_address(name)  # an address cannot be rebound as a name can


def read_keys(path: Path | None) -> tuple[str, ...]:
    """The keys in a file with one key per line; no keys for None.

    Raises UnsafeServer if the file is unreadable or empty, or if a key is too short.
    """
    if path is None:
        return ()
    advice = 'python -c "import secrets; print(secrets.token_urlsafe(32))" creates one.'
    try:
        keys = tuple(_keys(path.read_text(encoding="ascii").splitlines()))
    except (OSError, ValueError) as error:
        raise UnsafeServer(f"The key file {path} cannot be read ({error}): give a file with one key a line.") from error
    if not keys:
        raise UnsafeServer(f"The key file {path} holds no key: write one to it. {advice}")
    if shortest := [key for key in keys if len(key) < SHORTEST_KEY]:
        raise UnsafeServer(
            f"The key file {path} holds a key of {len(shortest[0])} characters: use at least {SHORTEST_KEY}. {advice}"
        )
    return keys


def _keys(lines: Iterable[str]) -> Iterable[str]:
    return (line.strip() for line in lines if line.strip())


def _name(host: str) -> str:
    """The host in a Host header, without port and brackets; empty if the header is malformed."""
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:/?#@]*))(?::\d*)?", host)
    return "" if found is None else found[1] or found[2] or ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
