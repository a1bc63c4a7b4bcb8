"""TLS certificates."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from outrider.pipelines import OutriderError


class BadCertificate(OutriderError):
    """A certificate that cannot be used."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of a certificate chain and its private key. Raises BadCertificate if they cannot be used together."""

    chain: Path
    key: Path

    def __post_init__(self) -> None:
        for option, path in (("--tls-cert", self.chain), ("--tls-key", self.key)):
            try:
                path.read_bytes()
            except OSError as error:
                raise BadCertificate(
                    f"{option} {path} cannot be read ({error.strerror}): give a readable PEM file."
                ) from error
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise BadCertificate(
                f"--tls-cert {self.chain} and --tls-key {self.key} are not a certificate and its key: give both in "
                "PEM, the key without a password."
            ) from error


def certificate_of(chain: Path | None, key: Path | None) -> Certificate | None:
    """The certificate that the two options name; None if neither is given. Raises BadCertificate."""
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        raise BadCertificate("--tls-cert and --tls-key belong together: give both, or neither.")
    return Certificate(chain, key)


def _no_password() -> str:
    return ""  # or OpenSSL would ask on the terminal
