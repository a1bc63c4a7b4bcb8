"""Backend: what runs the requests of a pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

from .lock import FairLock
from .request import CANCELLED, Request


@dataclass(frozen=True, slots=True)
class Load:
    """What a backend has to do at this moment.

    cache_used: the share of the cache's blocks that running requests hold; None where nobody can tell.
    passes: of the target, for warming up and for requests, since it was loaded.
    """

    waiting: int
    running: int
    cache_used: float | None
    passes: int


class Backend(ABC):
    """`Engine` on the CPU, `GenaiEngine` on every other device.

    Whoever waits for a request calls `step` until it is finished; calls from several threads take turns, and each
    serves everybody. So what a request has come to is read under the `lock`.
    """

    def __init__(self) -> None:
        self._arrived: deque[Request] = deque()  # whoever adds a request must not wait for the pass that is on
        self._waiting: deque[Request] = deque()
        self._num_passes = 0
        self.lock = FairLock()

    def add(self, request: Request) -> None:
        """Queue a request. Raises CacheTooSmall and whatever else could not run even alone."""
        self._check(request)
        self._arrived.append(request)

    def cancel(self, request: Request) -> None:
        """End a request and free what it holds, at once or with the step that is on; one that has ended is left."""
        with self.lock:
            if not request.finished:
                self._queue_arrived()
                request.finish_reason = CANCELLED
                self._retire(request)

    @property
    @abstractmethod
    def load(self) -> Load:
        """Read without waiting for the pass that is on."""

    @abstractmethod
    def step(self) -> None:
        """Bring the running requests on: new tokens, the end or an error."""

    @abstractmethod
    def _check(self, request: Request) -> None:
        """Raise where a request could not even run alone."""

    @abstractmethod
    def _retire(self, request: Request) -> None:
        """Let go of a request that has ended, waiting or running."""

    def _queue_arrived(self) -> None:
        while self._arrived:
            self._waiting.append(self._arrived.popleft())
