"""A headless browser, and pages for it to open."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.launch import open_page
from outrider.app.chat.store.history import History

from .chat.scripted import ScriptedPipeline

PATIENCE_MS = 60_000  # for a slow machine that has other work
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """An installed Chromium, or the one that Playwright has downloaded.

    For one file at a time: while Playwright is on, no other event loop can run in this thread.
    """
    installed = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=next(filter(None, installed), None), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Opens a window of its own; options are those of Playwright's `new_context`."""
    contexts = []

    def open_context(**options: Any) -> BrowserContext:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        return context

    yield open_context
    for context in contexts:
        context.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Serves the page of a pipeline, with the test's own history, and gives its address."""
    pages = []

    def serve(pipeline: Any, name: str = "scripted", open_pair: Any = None) -> str:
        port = free_port()
        history = History(tmp_path / "history.sqlite")
        assistant = Assistant(pipeline, name, open_pair, tmp_path / "pairs")
        pages.append(open_page(assistant, history, "127.0.0.1", port))
        return f"http://127.0.0.1:{port}"

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
