"""Server-sent events: a stream of JSON objects that ends with [DONE], or when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .errors import ApiError

T = TypeVar("T")


class EventStream(StreamingResponse):
    """Sends each of `events`, and an ApiError raised among them as the last event. Always calls `on_end`.

    fastapi.sse is of no use here: its routes always stream and always begin with status 200, while these routes answer
    with JSON or a stream as the request asks, and refuse requests with a status of their own.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[BaseModel], on_end: Callable[[], None]) -> None:
        super().__init__(_encoded(events), headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self.stream_response(send))
        finally:
            self._on_end()


async def _encoded(events: AsyncIterator[BaseModel]) -> AsyncIterator[str]:
    try:
        async for event in events:
            yield f"data: {event.model_dump_json(exclude_unset=True)}\n\n"
            await asyncio.sleep(0)  # sending need not suspend; without a turn, the loop cannot report a disconnect
    except ApiError as error:
        yield f"data: {error.text}\n\n"
    yield "data: [DONE]\n\n"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None if the client disconnects first, which cancels `work`."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
