"""TLS: the certificate that encrypts what browsers and programs on other machines send."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from outrider.pipelines import OutriderError


class BadCertificate(OutriderError):
    """A certificate that nobody could be served with."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Two files in PEM. Raises BadCertificate where they cannot be read or do not belong together."""

    chain: Path
    key: Path

    def __post_init__(self) -> None:
        for option, path in (("--tls-cert", self.chain), ("--tls-key", self.key)):
            try:
                path.read_bytes()
            except OSError as error:
                raise BadCertificate(
                    f"{option} {path} cannot be read ({error.strerror}): give a file in PEM that you may read."
                ) from error
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise BadCertificate(
                f"--tls-cert {self.chain} and --tls-key {self.key} are no certificate with its key: give the "
                "certificate and the private key that it was made for, both in PEM, the key without a password."
            ) from error


def certificate_of(chain: Path | None, key: Path | None) -> Certificate | None:
    """What the two options name together, None where neither is given. Raises BadCertificate."""
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        raise BadCertificate("--tls-cert and --tls-key belong together: give both, or neither.")
    return Certificate(chain, key)


def _no_password() -> str:
    return ""  # instead of OpenSSL's question on the terminal
