"""Preprocessor: tokenizes prompts and compiles grammars, so that slow requests do not delay others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from .errors import ApiError
from .limits import Limits

LIGHT_BYTES = 64 << 10  # of an unstructured request: tokenized within milliseconds


HEAVY_THREADS = 2


class Stalled(ApiError):
    """Preprocessing does not go on, whatever the request."""

    def __init__(self) -> None:
        super().__init__(
            503, "Preprocessing of other requests takes long: try again.", code="preprocessing_busy",
            headers={"Retry-After": "1"},
        )  # fmt: skip


class Preprocessor:
    """Runs the preprocessing of requests in threads of its own.

    Light requests run one at a time, in the order of arrival. Heavy ones, with a long prompt or structured output, have
    other threads and delay only each other.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._light = ThreadPoolExecutor(1, "preprocessing")
        self._heavy = ThreadPoolExecutor(HEAVY_THREADS, "heavy preprocessing")
        self._abandoned: list[Future[None]] = []  # work of the heavy threads that nobody waits for any more

    async def run(self, work: Callable[[], None], is_structured: bool, num_bytes: int) -> None:
        """Run `work` in a thread. Raises ApiError on a timeout; work that has begun then finishes unused.

        Raises Stalled if the timeout is not the fault of the request.
        """
        is_heavy = self.is_heavy(is_structured, num_bytes)
        if is_heavy and self._is_occupied():
            raise Stalled
        running = (self._heavy if is_heavy else self._light).submit(work)
        awaited = asyncio.wrap_future(running)
        await asyncio.wait({awaited}, timeout=self._limits.read_s)
        if awaited.done():
            return awaited.result()
        was_queued = running.cancel()
        awaited.cancel()  # or asyncio would report that its result was never retrieved
        if was_queued or not is_heavy:
            raise Stalled
        self._abandoned.append(running)
        raise self._too_complex(is_structured)

    @staticmethod
    def is_heavy(is_structured: bool, num_bytes: int) -> bool:
        return is_structured or num_bytes > LIGHT_BYTES

    def _is_occupied(self) -> bool:
        """Whether all heavy threads have work that nobody waits for."""
        self._abandoned = [work for work in self._abandoned if not work.done()]
        return len(self._abandoned) >= HEAVY_THREADS

    def close(self) -> None:
        """Wait for the work that has begun."""
        for lane in (self._light, self._heavy):
            lane.shutdown()

    def _too_complex(self, is_structured: bool) -> ApiError:
        what = "The structure of the answer" if is_structured else "The prompt"
        return ApiError(
            400,
            f"{what} took longer than {self._limits.read_s:g} s to preprocess: give a simpler or shorter one.",
            code="too_complex",
        )
