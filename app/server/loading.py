"""What the server answers while the model loads, which can take minutes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from .errors import ApiError
from .limits import Limits
from .protocol import Web, config_of

GRACE_S = 1  # for answers that are on their way
RETRY_AFTER = {"Retry-After": "5"}  # seconds


@contextmanager
def told_to_wait(bound: socket.socket, limits: Limits, **options: Any) -> Iterator[None]:
    """Within the block, clients of the listening socket `bound` are told that the model is loading. Those that come
    after it wait for whoever serves the socket next.

    options: further ones of `uvicorn.Config`.
    """
    ending = {"timeout_graceful_shutdown": 2 * GRACE_S, "log_level": "critical"}  # it would log that this has passed
    web = Web(config_of(_api(), limits, **ending, **options), GRACE_S)

    def serve() -> None:
        loop = asyncio.SelectorEventLoop()  # Windows lets a socket belong to one loop of the other kind for ever
        loop.run_until_complete(web.serve([bound.dup()]))
        if unfinished := asyncio.all_tasks(loop):  # TLS connections that are not open yet
            for task in unfinished:
                task.cancel()
            loop.run_until_complete(asyncio.wait(unfinished))
        loop.close()

    thread = Thread(target=serve, name="told to wait", daemon=True)
    thread.start()
    while not web.started and thread.is_alive():
        time.sleep(0.001)
    try:
        yield
    finally:
        web.should_exit = True
        thread.join()


def _api() -> Starlette:
    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "loading", "exact": None}, 503, RETRY_AFTER)

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        told = ApiError(503, "The model is loading: try again later.", code="loading", headers=RETRY_AFTER)
        return JSONResponse(told.body, told.status_code, told.headers)

    return Starlette(routes=[Route("/health", health)], exception_handlers={404: refuse, 405: refuse})
