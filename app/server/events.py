"""Server-sent events: a stream of JSON objects that ends with [DONE], for as long as the client listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError

T = TypeVar("T")


class EventStream(Response):
    """Sends what `events` gives, and calls `on_end` whatever happens. An error in between is the last event."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[BaseModel], on_end: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send(send))
        finally:
            self._on_end()

    async def _send(self, send: Send) -> None:
        async def send_event(data: str) -> None:
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})
            await asyncio.sleep(0)  # sending need not suspend; without a turn, the loop cannot report a disconnect

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in self._events:
                await send_event(event.model_dump_json(exclude_unset=True))
        except ApiError as error:
            await send_event(error.text)
        await send_event("[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives, or None where the client goes away first; then it is cancelled."""

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
