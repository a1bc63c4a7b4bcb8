"""Each peer in a process of its own, so that their thread pools and libraries do not meet."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module

from .base import CannotRun, Peer, Question, Reply, Setup

PEERS = {  # name: module and class
    "Outrider": ("ours", "Ours"),
    "OpenVINO GenAI": ("genai", "GenAI"),
    "optimum-intel": ("optimum", "Optimum"),
    "llama.cpp": ("llama", "LlamaCpp"),
}

_peer: Peer | None = None  # of this process


class Worker:
    """A peer behind a pipe. Raises CannotRun where it cannot be loaded."""

    def __init__(self, name: str, setup: Setup) -> None:
        self.name = name
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.modes, self.biased, self.versions = self._call(_load, name, setup)

    def answer(self, mode: str, question: Question) -> Reply:
        """Raises CannotRun."""
        return self._call(_answer, mode, question)

    def close(self) -> None:
        self._process.shutdown()

    def _call(self, function: Callable[..., object], *arguments: object) -> object:
        try:
            return self._process.submit(function, *arguments).result()
        except CannotRun:
            raise
        except Exception as error:
            raise CannotRun(f"{type(error).__name__}: {error}") from error


def _load(name: str, setup: Setup) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    global _peer
    module, kind = PEERS[name]
    _peer = getattr(import_module(f"{__package__}.{module}"), kind)(setup)
    return tuple(_peer.modes), tuple(_peer.biased), dict(_peer.versions)


def _answer(mode: str, question: Question) -> Reply:
    assert _peer is not None
    return _peer.answer(mode, question)
