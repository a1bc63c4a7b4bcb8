"""Access: who may ask the server or open the page, and from which web pages."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from outrider.pipelines import OutriderError

SHORTEST_KEY = 16  # characters
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class UnsafeServer(OutriderError):
    """The server was told to listen in a way that would let strangers in."""


class Denied(OutriderError):
    """A request that must not be answered. `code` is "host" or "origin"."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Access:
    """Raises UnsafeServer where it would let anybody in, or names an origin or a host that is none.

    host: the address to listen on.
    keys: each opens the server; without one, only this machine is let in, so `host` has to be its own.
    origins: web pages that may ask from a browser, as "https://example.org"; "*" for all.
    names: what else this machine is called in the addresses that people open. A web page can let a name of its own
        lead here, so that a browser takes the two for one; such a name is refused.
    scheme: "https" with TLS.
    """

    host: str
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    scheme: str = "http"

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
        for name in self.names:
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name):
                raise UnsafeServer(
                    f"--allowed-host {name!r} is no name of a machine: give it without scheme and port, such as "
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
        """Raises Denied where a request names another machine, or a web page sends it that may not."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._is_ours(_name(host).lower()):
            advice = "http://127.0.0.1." if self.is_local else "its address, or start it with --allowed-host."
            raise Denied(f"The Host header does not name this machine: ask for {advice}", "host")
        if origin is not None and not {origin, "*"}.intersection(self.origins) and origin != f"{self.scheme}://{host}":
            raise Denied("Web pages of this origin may not use the server: start it with --cors-origin.", "origin")

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Whether a request carries a key, or needs none."""
        if not self.keys:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.has_key(given.strip().encode("latin-1", "replace"))

    def has_key(self, sent: bytes) -> bool:
        matches = [hmac.compare_digest(sent, key.encode()) for key in self.keys]  # all, so that the time tells nothing
        return any(matches)

    def _is_ours(self, name: str) -> bool:
        if name in {*LOCAL_NAMES, self.host.lower(), *(known.lower() for known in self.names)}:
            return True
        if self.is_local:
            return False
        own = socket.gethostname().lower()
        return name in {own, f"{own}.local"} or _is_address(name)  # an address leads nowhere else


def read_keys(path: Path | None) -> tuple[str, ...]:
    """The keys in a file, one a line, none without one.

    Raises UnsafeServer where it cannot be read, or a key could be guessed.
    """
    if path is None:
        return ()
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
    """The host of a Host header, without port and brackets; nothing where it is none."""
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:/?#@]*))(?::\d*)?", host)
    return "" if found is None else found[1] or found[2] or ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
