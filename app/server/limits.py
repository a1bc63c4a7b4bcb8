"""Limits on requests and connections."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.pipelines import InvalidOption

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """answers: answers that wait or are being generated, of all requests together.
    body_bytes: size of a request body.
    connections: open connections.
    head_s: seconds for the head of a request to arrive.
    body_s: seconds for the body to arrive.
    read_s: seconds for preprocessing: tokenizing the prompt and compiling the structure of the answer.
    stall_s: seconds in which a client reads nothing of what it was sent.
    request_s: seconds for all answers to a request, including the time in the queue.
    retry_after_s: seconds after which a client may retry when the queue is full.

    Raises InvalidOption if `request_s` is not positive.
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
            raise InvalidOption(f"--request-seconds {self.request_s} is not possible: give a positive number.")
