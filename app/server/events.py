"""Server-sent events: a stream of JSON objects that ends with [DONE], or when the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .errors import ApiError, as_api_error

T = TypeVar("T")
log = logging.getLogger(__name__)

PING_S = 15.0  # while a long prompt is read, nothing is sent; many proxies close a connection after 30 or 60 s of that


class EventStream(StreamingResponse):
    """Sends each of `events`, and an error raised among them as the last event. Always calls `on_end`.

    FastAPI's own event streams are of no use here: their routes always stream and always begin with status 200, while
    these routes answer with JSON or a stream as the request asks, and refuse requests with a status of their own.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[BaseModel], on_end: Callable[[], None]) -> None:
        self._encoded = _encoded(events)
        super().__init__(self._encoded, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self.stream_response(send))
        finally:
            self._on_end()
            await self._encoded.aclose()


async def _encoded(events: AsyncIterator[BaseModel]) -> AsyncGenerator[bytes, None]:
    """The events as bytes, and a comment, which clients ignore, after every PING_S seconds without an event."""
    upcoming = asyncio.create_task(_next(events))
    try:
        while True:
            await asyncio.wait((upcoming,), timeout=PING_S)  # unlike wait_for, it leaves the task running
            if not upcoming.done():
                yield KEEPALIVE_COMMENT
                continue
            event = upcoming.result()
            if event is None:
                break
            yield format_sse_event(data_str=event.model_dump_json(exclude_unset=True))
            upcoming = asyncio.create_task(_next(events))
    except Exception as error:  # a stream must tell how it ends, whatever happened
        if not isinstance(error, ApiError):
            log.exception("A stream failed")
        yield format_sse_event(data_str=as_api_error(error, "messages").text)
    finally:
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
    yield format_sse_event(data_str="[DONE]")


async def _next(events: AsyncIterator[T]) -> T | None:
    """The next event, or None after the last."""
    try:
        return await anext(events)
    except StopAsyncIteration:
        return None


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
