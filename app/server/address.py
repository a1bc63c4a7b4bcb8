"""The address that the server listens on."""

from __future__ import annotations

import errno
import socket
import sys

from outrider.pipelines import OutriderError


class CannotListen(OutriderError):
    """The server cannot listen on the address that was asked for."""


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that reserves the address while the model loads. Raises CannotListen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            if sys.platform == "win32":  # where SO_REUSEADDR would let two programs share the port
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            else:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(0)  # without it, another program could bind the port too
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise CannotListen(
            f"The server cannot listen on {_shown(host)}:{port} ({error.strerror}): {_advice(error, port)}"
        ) from error
    return bound


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """The URL of the server for programs on this machine."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return f"{scheme}://{_shown(everywhere.get(host, host))}:{port}"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _advice(error: OSError, port: int) -> str:
    other = f"choose another port, such as --port {port + 1 if port < 65535 else port - 1}."
    if error.errno == errno.EADDRINUSE:
        return f"stop the program that uses it, or {other}"
    if error.errno == errno.EACCES:
        return other
    return "give --host an address of this machine, such as 127.0.0.1."
