"""A headless browser, and pages for it to open."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.launch import open_page
from outrider.app.chat.store.history import History
from outrider.app.chat.ui import Page as ChatPage

from .browser import Port, Profiles, started_browser
from .chat.scripted import ScriptedPipeline


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def profiles() -> Iterator[Profiles]:
    """For one file at a time: while Playwright is on, no other event loop can run in this thread."""
    with started_browser() as browser:
        yield Profiles(browser)


@pytest.fixture(scope="module")
def ports() -> Iterator[list[Port]]:
    """Where the pages of a file are served, the first of each test at the first."""
    ports: list[Port] = []
    yield ports
    for port in ports:
        port.close()


@pytest.fixture
def open_context(profiles: Profiles) -> Iterator[Callable[..., BrowserContext]]:
    """A browser in which nobody has been yet; options are those of Playwright's `new_context`."""
    with ExitStack() as taken:
        yield lambda **options: taken.enter_context(profiles.one(options))


@pytest.fixture
def serve(tmp_path: Path, ports: list[Port]) -> Iterator[Callable[..., str]]:
    """Serves the page of a pipeline, with the test's own history, and gives its address."""
    pages: list[ChatPage] = []

    def serve(pipeline: Any, name: str = "scripted", open_pair: Any = None) -> str:
        port = next(filter(Port.is_free, ports), None)
        if port is None:
            ports.append(port := Port())
        history = History(tmp_path / "history.sqlite")
        assistant = Assistant(pipeline, name, open_pair, tmp_path / "pairs")
        pages.append(open_page(assistant, history, "127.0.0.1", port.number))
        return port.url

    yield serve
    for page in pages:
        page.blocks.close(verbose=False)
        page.history.close()


@pytest.fixture
def pipeline() -> Iterator[ScriptedPipeline]:
    pipeline = ScriptedPipeline()
    yield pipeline
    pipeline.warm.set()
    pipeline.gate.set()
