"""`outrider serve`: load a pair, serve it until interrupted, and print the status."""

from __future__ import annotations

import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from outrider.pipelines import LLMPipeline, OutriderError, Pair

from ..load_options import LoadOptions
from .address import bound_socket, url_of
from .admission import Access
from .api import Server, create_api
from .limits import Limits
from .loading import told_to_wait
from .protocol import Web, config_of
from .tls import Certificate
from .worker import Worker

GRACE_S = 10  # for clients to read the end of their streams


class FailedToStart(OutriderError):
    """The model failed while warming up."""


def serve(
    pair: Path,
    load: LoadOptions,
    access: Access,
    port: int,
    limits: Limits,
    certificate: Certificate | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises CannotListen, FailedToStart, and what LLMPipeline raises."""
    began = time.perf_counter()
    encryption = {} if certificate is None else {"ssl_certfile": certificate.chain, "ssl_keyfile": certificate.key}
    with bound_socket(access.host, port) as bound:
        name = Pair.open(pair).name
        with told_to_wait(bound, limits, **encryption):
            _say(f"Loading {name} on {load.device}")
            pipeline = load.load(pair)
        server = Server.of(pipeline, name, limits)
        api = create_api(server, access)
        web = _Web(config_of(api, limits, timeout_graceful_shutdown=3 * GRACE_S, **encryption), server.worker)
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn handles them later, and raises them again
            signal.signal(number, web.handle_exit)
        url = url_of(access.host, port, access.scheme)
        _say(f"Serving OpenAI's API at {url}/v1 ({_who(access)})")
        _say("Warming up: the first answers take longer" if load.device == "CPU" else "Warming up")

        def on_warm() -> None:
            if server.worker.failure is not None:
                web.should_exit = True
            elif not web.should_exit:
                _say(f"Ready after {time.perf_counter() - began:.1f} s. {_promise(pipeline)} Ctrl-C ends it.")

        server.worker.on_warm = on_warm
        web.run([bound])
    if server.worker.failure is not None:
        raise FailedToStart(
            f"{name} failed while warming up; the output above has the details. `outrider doctor` may say more."
        )
    _say("\nEnded.")  # on a new line, after the ^C that terminals show


class _Web(Web):
    """Ends open answers on shutdown, so that clients receive a proper end of their streams."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config, GRACE_S)
        self._worker = worker

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second signal changes nothing: uvicorn would not wait for the running pass."""
        self._worker.end_answers()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._worker.tell_end()
        await super().shutdown(sockets)


def _say(line: str) -> None:
    """Nobody may be listening any more: a program that started the server can have closed its end of the pipe."""
    with suppress(OSError, ValueError):
        print(line, flush=True)


def _who(access: Access) -> str:
    reach = "this machine only" if access.is_local else "every machine that can connect"
    return f"{reach}, {'with a key' if access.keys else 'no key needed'}"


def _promise(pipeline: LLMPipeline) -> str:
    if not pipeline.plans:
        return f"OpenVINO GenAI decodes on {pipeline.device}, where the same seed may give another text."
    if not pipeline.exact:
        return "On this device the same seed may give another text in another mode."
    return "Same seed, same text, in every mode."
