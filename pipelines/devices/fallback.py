"""Fallback: requests on which a device fails continue on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock

from ..engine.backend import Backend, Load
from ..engine.request import Request
from ..errors import DeviceFailed

log = logging.getLogger(__name__)


class Fallback(Backend):
    """Serves requests with `first`, until its device fails. From then on a backend for the CPU, which `load` loads when
    it is needed, serves them all: those that failed continue where they were, and new ones begin on the CPU. When none
    is left with `first`, it is let go. If an answer finds no memory left on the device, only that answer fails.
    """

    def __init__(self, first: Backend, load: Callable[[], Backend]) -> None:
        self.lock = first.lock  # under which the state of requests changes
        self.has_failed = False  # whether the CPU has taken over
        self._serving = [first]  # new requests go to the last one
        self._load = load
        self._can_load = True
        self._begun: list[Request] = []  # with `first`, and not yet seen to have ended
        self._num_passes = 0  # of `first`, once it has been let go
        self._adding = Lock()

    def add(self, request: Request) -> None:
        """Queue a request. Raises what the backend raises."""
        with self._adding:
            if not self.has_failed:
                self._begun.append(request)  # before it can fail
                try:
                    self._serving[0].add(request)
                except Exception:
                    self._begun.remove(request)
                    raise
                return
        self._serving[-1].add(request)

    def cancel(self, request: Request) -> None:
        with self.lock:
            if request in self._begun:
                self._serving[0].cancel(request)
                self._begun.remove(request)
            else:
                self._serving[-1].cancel(request)

    @property
    def load(self) -> Load:
        loads = [each.load for each in [*self._serving]]
        return Load(
            sum(load.waiting for load in loads),
            sum(load.running for load in loads),
            loads[-1].cache_used,
            self._num_passes + sum(load.passes for load in loads),
        )

    def step(self) -> None:
        """Run a pass of each backend that has requests."""
        with self.lock:
            if self._begun:
                self._serving[0].step()
            self.settle()
            if self.has_failed:
                self._serving[-1].step()

    def settle(self) -> None:
        """Hand requests that the device failed to the CPU. If that cannot be loaded, they end with the failure."""
        with self.lock:
            ended = [each for each in self._begun if each.finished]
            for request in ended:
                self._begun.remove(request)
            self._take_over(ended)
            if len(self._serving) > 1 and not self._begun:
                self._num_passes = self._serving.pop(0).load.passes

    def _take_over(self, ended: Sequence[Request]) -> None:
        failed = [each for each in ended if isinstance(each.error, DeviceFailed) and each.error.__cause__ is not None]
        if failed and not self.has_failed and self._can_load:
            # The text alone, since a record that holds the error would keep all that its traceback leads to in memory.
            log.warning("From now on, requests continue on the CPU: %s", str(failed[0].error))
            self.is_changing = True
            try:
                second = self._load()
                second.lock = self.lock
                with self._adding:
                    self._serving.append(second)
                    self.has_failed = True
            except Exception:
                log.exception("The CPU cannot take over")
                self._can_load = False
            finally:
                self.is_changing = False
        for request in failed if self.has_failed else ():
            request.error = None
            try:
                self._serving[-1].add(request)
            except Exception as error:  # such as CacheTooSmall
                request.error = error
