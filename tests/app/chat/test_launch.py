"""Opening the page."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path

import pytest

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.launch import open_page
from outrider.app.chat.store.history import History

from ..conftest import free_port
from .scripted import ScriptedPipeline


def test_the_browser_begins_with_the_proxies_that_it_would_have_anyway(
    pipeline: ScriptedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, str]] = []
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append((address, os.environ["no_proxy"])))
    port, history = free_port(), History(tmp_path / "history.sqlite")
    page = open_page(Assistant(pipeline, "scripted"), history, "127.0.0.1", port, open_browser=True)
    page.blocks.close(verbose=False)
    history.close()
    assert opened == [(f"http://127.0.0.1:{port}/", "example.org")]
