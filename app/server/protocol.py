"""HTTP protocol: uvicorn's, with timeouts for clients that send or read nothing."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError
from .limits import Limits

KEEP_ALIVE_S = 30
MOST_TOLD = 128  # connections beyond the limit that get an error; further ones are closed at once
MOST_AHEAD = 64 << 10  # bytes of further requests that are read before the answer to the first has ended


class Protocol(H11Protocol):
    """Closes connections whose request does not arrive, and those that stop reading."""

    def __init__(self, *arguments: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._arriving: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(1, 0)  # notices any unread byte; with TLS, 0 would pause for ever
        most = self._limits.connections
        if len(self.connections) > most + MOST_TOLD:
            transport.abort()
            return
        if len(self.connections) > most:
            self.app = _refusal(most)
        self._arriving = self._later(self._limits.head_s, self._end_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_answered = self.cycle is not None and self.cycle.response_complete
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) <= MOST_AHEAD:
            self.flow.resume_reading()  # uvicorn pauses it, and would not notice when the client goes away
        if self.conn.their_state is not h11.IDLE and not is_answered:
            self._stop_waiting()  # the application has its own timeout for the body
        elif self._arriving is None and not self.transport.is_closing():
            self._arriving = self._later(self._limits.head_s, self._end_late)

    def send_400_response(self, msg: str) -> None:
        """Where an answer has begun, as to a request whose body is not read, there can be no other one."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """Also wakes an application that waits for the rest of a body, which then gets an empty part of it."""
        super().shutdown()
        if self.cycle is not None and self.cycle.more_body:
            self.cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def _later(self, seconds: float, do: Any, *arguments: Any) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, do, *arguments)

    def _stop_waiting(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _stop_watching(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _watch(self, num_left: int) -> None:
        self._stop_watching()
        self._stalled = self._later(self._limits.stall_s, self._end_stalled, num_left)

    def _end_stalled(self, num_left: int) -> None:
        """Keeps a client that is slow but still reading."""
        if (now_left := self.transport.get_write_buffer_size()) < num_left:
            self._watch(now_left)
        else:
            self.transport.abort()

    def _end_late(self) -> None:
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            error = ApiError(408, f"The head of the request did not arrive within {self._limits.head_s:g} s.")
            body = error.text.encode()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
            events = (
                h11.Response(status_code=408, headers=list(headers.items()), reason=b"Request Timeout"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


class Web(uvicorn.Server):
    """Ends connections that are still open `grace_s` seconds after the shutdown has begun: uvicorn would cancel the
    tasks of clients that do not read, and log each as an error."""

    def __init__(self, config: uvicorn.Config, grace_s: float) -> None:
        super().__init__(config)
        self._grace_s = grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(self._grace_s, self._abort_all)
        await super().shutdown(sockets)

    def _abort_all(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def config_of(api: ASGIApp, limits: Limits, **options: Any) -> uvicorn.Config:
    """The configuration of uvicorn for the application. `options` are further ones of `uvicorn.Config`."""
    return uvicorn.Config(
        api,
        http=partial(Protocol, limits=limits),  # type: ignore[arg-type]
        **{"log_level": "warning", **options},
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def _refusal(most: int) -> ASGIApp:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        error = ApiError(
            503, f"{most} connections are open, the limit: close some, or try again later.",
            code="too_many_connections", headers={"Retry-After": "1", "Connection": "close"},
        )  # fmt: skip
        await JSONResponse(error.body, error.status_code, error.headers)(scope, receive, send)

    return refuse
