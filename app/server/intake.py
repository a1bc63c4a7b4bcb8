"""Intake: where requests are read, which takes long for some of them and holds up none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .errors import ApiError
from .limits import Limits

LIGHT_BYTES = 64 << 10  # of a request without a form for its answer: tokenized within milliseconds


class Intake:
    """Tokenizes prompts and compiles forms, in threads of its own.

    Light requests are read one after the other, in the order in which they came. Heavy ones, with a form for the answer
    or a long prompt, wait for each other only.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._light = ThreadPoolExecutor(1, "intake")
        self._heavy = ThreadPoolExecutor(2, "intake of heavy requests")

    async def read(self, work: Callable[[], None], has_form: bool, num_bytes: int) -> None:
        """Have a request read. Raises ApiError where that takes too long; what was begun goes on for nobody."""
        lane = self._heavy if has_form or num_bytes > LIGHT_BYTES else self._light
        reading = lane.submit(work)
        awaited = asyncio.wrap_future(reading)
        await asyncio.wait({awaited}, timeout=self._limits.read_s)
        if awaited.done():
            return awaited.result()
        is_queued = reading.cancel()
        awaited.cancel()  # nobody wants to know any more
        if is_queued:
            raise ApiError(
                503, "Other requests take long to read: try again.", code="intake_busy", headers={"Retry-After": "1"}
            )
        raise self._too_complex(has_form)

    def close(self) -> None:
        """Wait for what is being read."""
        for lane in (self._light, self._heavy):
            lane.shutdown()

    def _too_complex(self, has_form: bool) -> ApiError:
        what = "The form that the answer is to have" if has_form else "The prompt"
        return ApiError(
            400,
            f"{what} took longer than {self._limits.read_s:g} s to read: give a simpler or shorter one.",
            code="too_complex",
        )
