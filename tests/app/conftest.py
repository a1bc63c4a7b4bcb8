"""A headless browser, and pages for it to open."""

from __future__ import annotations

import socket
import sqlite3
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.launch import open_page
from outrider.app.chat.store.history import History
from outrider.app.chat.ui import Page as ChatPage

from .browser import KeptPage, Port, Profiles, started_browser
from .chat.scripted import ScriptedPipeline


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """Clients share the certificates of authorities, which each would read anew for every request."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


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
def end_of_file() -> Iterator[ExitStack]:
    """What is to be closed after the last test of a file."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def ports() -> list[Port]:
    """Where the pages of a file are served, the first of each test at the first."""
    return []


@pytest.fixture
def open_context(profiles: Profiles) -> Iterator[Callable[..., BrowserContext]]:
    """A browser in which nobody has been yet; options are those of Playwright's `new_context`."""
    with ExitStack() as taken:
        yield lambda **options: taken.enter_context(profiles.one(options))


@dataclass(slots=True)
class Stage:
    """A served page. One test after the other puts its own pipeline behind it."""

    page: ChatPage
    port: Port
    built_for: tuple[Any, ...]
    is_taken: bool = False

    @property
    def url(self) -> str:
        return self.port.url

    def put(self, pipeline: Any, name: str, open_pair: Any, pairs: Path) -> None:
        self.is_taken = True
        # The page's events hold this assistant, so it is begun again and not replaced.
        self.page.assistant.__init__(pipeline, name, open_pair, pairs)  # type: ignore[misc]
        self.page.assistant.warm_up_in_background()

    def clear(self) -> None:
        """Nothing of a test goes on in the next one."""
        assistant = self.page.assistant
        if isinstance(assistant.pipeline, ScriptedPipeline):
            assistant.pipeline.warm.set()
            assistant.pipeline.gate.set()
        assistant.close()
        self.is_taken = False

    def close(self) -> None:
        self.page.blocks.close(verbose=False)
        self.page.history.close()


def built_for(pipeline: Any) -> tuple[Any, ...]:
    """What the components of a page are made for."""
    return pipeline.modes, pipeline.max_context, pipeline.device, pipeline.plans


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return []


@pytest.fixture(scope="module")
def history_of_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history") / "history.sqlite"


@pytest.fixture
def history_path(history_of_file: Path) -> Path:
    """The history of the pages that are served, without conversations and presets.

    It is one for all tests of a file, so that no number of a conversation comes twice.
    """
    if history_of_file.exists():
        with closing(sqlite3.connect(history_of_file, isolation_level=None)) as db:
            for table in ("turns", "chats", "presets"):
                db.execute(f"DELETE FROM {table}")
    return history_of_file


@pytest.fixture
def serve(
    tmp_path: Path, history_path: Path, ports: list[Port], stages: list[Stage], end_of_file: ExitStack
) -> Iterator[Callable[..., str]]:
    """Serves the page of a pipeline, and gives its address.

    It is one of its own where pairs can be loaded, and with `kept_in`, as of a new program with this history.
    """
    own: list[Stage] = []

    def serve(pipeline: Any, name: str = "scripted", open_pair: Any = None, kept_in: Path | None = None) -> str:
        made_for, pairs = built_for(pipeline), tmp_path / "pairs"
        fitting = (stage for stage in stages if stage.built_for == made_for and not stage.is_taken)
        is_own = kept_in is not None or open_pair is not None
        if not is_own and (stage := next(fitting, None)):
            stage.put(pipeline, name, open_pair, pairs)
            return stage.url
        port = next(filter(Port.is_free, ports), None)
        if port is None:
            ports.append(port := end_of_file.enter_context(closing(Port())))
        assistant = Assistant(pipeline, name, open_pair, pairs)
        page = open_page(assistant, History(kept_in or history_path), "127.0.0.1", port.number)
        stage = Stage(page, port, made_for, is_taken=True)
        if is_own:
            own.append(stage)
        else:
            stages.append(end_of_file.enter_context(closing(stage)))
        return stage.url

    yield serve
    for stage in stages:
        if stage.is_taken:
            stage.clear()
    for stage in own:
        stage.close()


@pytest.fixture(scope="module")
def kept_pages(profiles: Profiles) -> dict[str, KeptPage]:
    return {}


@pytest.fixture
def open_kept(
    serve: Callable[..., str], history_path: Path, profiles: Profiles, kept_pages: dict[str, KeptPage]
) -> Iterator[Callable[..., Page]]:
    """The page of a pipeline, as it is when it has just been opened; see `KeptPage`."""

    def open_kept(pipeline: Any, size: tuple[int, int] | None = None, scheme: Any = None, **options: Any) -> Page:
        key = repr((built_for(pipeline), size, scheme, sorted(options.items())))
        if key not in kept_pages:
            kept_pages[key] = KeptPage(profiles.take(options))
        with closing(History(history_path)) as history:
            titles = [chat.title for chat in history.chats()]
        return kept_pages[key].at(serve(pipeline), titles, size, scheme)

    yield open_kept
    for kept in kept_pages.values():
        kept.leave()


@pytest.fixture
def pipeline() -> Iterator[ScriptedPipeline]:
    pipeline = ScriptedPipeline()
    yield pipeline
    pipeline.warm.set()
    pipeline.gate.set()
