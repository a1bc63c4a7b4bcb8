"""Limits: how much one client may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.pipelines import InvalidOption

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """answers: waiting and being written at a time, of all requests together. Times are in seconds.

    connections: that are open at a time.
    head_s: for the head of a request to arrive.
    body_s: for a body to arrive.
    read_s: for its prompt to be tokenized and the form of its answer to be compiled.
    stall_s: without a byte taken by a client to which something was sent.
    request_s: for the answers to a request, waiting included.

    Raises InvalidOption where a time is none.
    """

    answers: int = 256
    body_bytes: int = 8 * MIB
    connections: int = 512
    head_s: float = 15.0
    body_s: float = 60.0
    read_s: float = 20.0
    stall_s: float = 60.0
    request_s: float = 600.0
    retry_after_s: int = 1

    def __post_init__(self) -> None:
        if not self.request_s > 0:
            raise InvalidOption(f"--request-seconds {self.request_s} is no time: give a number from 1 up.")
