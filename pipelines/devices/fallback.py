"""Fallback: requests that a device fails to answer go on on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..engine.backend import Backend, Load
from ..engine.request import Request
from ..errors import DeviceFailed, OutriderError

log = logging.getLogger(__name__)


class Fallback(Backend):
    """Serves requests with `first`, until its device fails. From then on a backend for the CPU, which `load` loads when
    it is needed, serves them all: those that failed go on where they were, and new ones begin there.
    """

    def __init__(self, first: Backend, load: Callable[[], Backend]) -> None:
        self.lock = first.lock  # under which the state of requests changes
        self._first = first
        self._load = load
        self._second: Backend | None = None
        self._begun: list[Request] = []  # with `first`, and not seen to have ended

    @property
    def has_failed(self) -> bool:
        """Whether the CPU has taken over."""
        return self._second is not None

    def add(self, request: Request) -> None:
        """Queue a request. Raises what the backend raises."""
        backend = self._second or self._first
        backend.add(request)
        if backend is self._first:
            self._begun.append(request)

    def cancel(self, request: Request) -> None:
        with self.lock:
            backend = self._first if self._second is None or request in self._begun else self._second
            backend.cancel(request)

    @property
    def load(self) -> Load:
        loads = [each.load for each in (self._first, self._second) if each is not None]
        return Load(
            sum(load.waiting for load in loads),
            sum(load.running for load in loads),
            loads[-1].cache_used,
            sum(load.passes for load in loads),
        )

    def step(self) -> None:
        """Run a pass of each backend that has requests."""
        with self.lock:
            if self._begun:
                self._first.step()
                self._take_over()
            if self._second is not None:
                self._second.step()

    def _take_over(self) -> None:
        for request in [each for each in self._begun if each.finished]:
            self._begun.remove(request)
            if isinstance(request.error, DeviceFailed):
                failure, request.error = request.error, None
                try:
                    self._cpu(failure).add(request)
                except OutriderError as error:  # such as a cache that is too small
                    request.error = error

    def _cpu(self, failure: DeviceFailed) -> Backend:
        if self._second is None:
            log.warning("Requests go on on the CPU from now on: %s", failure)
            self._second = self._load()
        return self._second
