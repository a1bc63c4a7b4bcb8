"""Limits: how much one client may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """answers: waiting and being written at a time, of all requests together. Times are in seconds."""

    answers: int = 256
    body_bytes: int = 8 * MIB
    request_s: float = 600.0
    retry_after_s: int = 1
