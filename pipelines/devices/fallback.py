"""Fallback: requests on which a device fails continue on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..engine.backend import Backend, Load
from ..engine.request import Request
from ..errors import DeviceFailed

log = logging.getLogger(__name__)


class Fallback(Backend):
    """Serves requests with `first`, until its device fails. From then on a backend for the CPU, which `load` loads when
    it is needed, serves them all: those that failed continue where they were, and new ones begin on the CPU. If an
    answer finds no memory left on the device, only that answer fails.
    """

    def __init__(self, first: Backend, load: Callable[[], Backend]) -> None:
        self.lock = first.lock  # under which the state of requests changes
        self._first = first
        self._load = load
        self._second: Backend | None = None
        self._can_load = True
        self._begun: list[Request] = []  # with `first`, and not yet seen to have ended

    @property
    def has_failed(self) -> bool:
        """Whether the CPU has taken over."""
        return self._second is not None

    def add(self, request: Request) -> None:
        """Queue a request. Raises what the backend raises."""
        if self._second is not None:
            self._second.add(request)
            return
        self._begun.append(request)  # before it can fail
        try:
            self._first.add(request)
        except Exception:
            self._begun.remove(request)
            raise

    def cancel(self, request: Request) -> None:
        with self.lock:
            if self._second is None or request in self._begun:
                self._first.cancel(request)
            else:
                self._second.cancel(request)
            if request in self._begun:
                self._begun.remove(request)

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
                self.settle()
            if self._second is not None:
                self._second.step()

    def settle(self) -> None:
        """Hand requests that the device failed to the CPU. If that cannot be loaded, they end with the failure."""
        with self.lock:
            ended = [each for each in self._begun if each.finished]
            for request in ended:
                self._begun.remove(request)
            self._take_over(ended)

    def _take_over(self, ended: Sequence[Request]) -> None:
        failed = [each for each in ended if isinstance(each.error, DeviceFailed) and each.error.__cause__ is not None]
        if failed and self._second is None and self._can_load:
            log.warning("From now on, requests continue on the CPU: %s", failed[0].error)
            self.is_changing = True
            try:
                second = self._load()
                second.lock = self.lock
                self._second = second
            except Exception:
                log.exception("The CPU cannot take over")
                self._can_load = False
            finally:
                self.is_changing = False
        for request in failed if self._second is not None else ():
            assert self._second is not None
            request.error = None
            try:
                self._second.add(request)
            except Exception as error:  # such as CacheTooSmall
                request.error = error
