"""Opening the page."""

from __future__ import annotations

import os
import webbrowser
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.launch import for_another, open_page
from outrider.app.chat.store.history import History
from outrider.app.load_options import LoadOptions

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


@pytest.mark.parametrize(
    ("given", "device", "expected"),
    [
        (LoadOptions(draft_device="NPU", properties={"NPU_X": 1}), "CPU", LoadOptions()),
        (LoadOptions(draft_device="NPU", properties={"NPU_X": 1}), "NPU", LoadOptions("NPU", properties={"NPU_X": 1})),
        (LoadOptions("GPU", "GPU.1", speculation="draft"), "GPU", LoadOptions("GPU")),
        (LoadOptions("GPU", speculation="draft", head=Path("head")), "GPU.1", LoadOptions("GPU.1")),
        (LoadOptions("GPU", speculation="lookup"), "GPU", None),
        (LoadOptions(exact=False), "CPU", None),
    ],
    ids=str,
)
def test_a_pair_without_a_draft_model_is_loaded_without_the_options_for_one(
    embedded_pair: Path, caplog: pytest.LogCaptureFixture, given: LoadOptions, device: str, expected: LoadOptions | None
) -> None:
    assert for_another(embedded_pair / "target", given, device) == (expected or given)
    assert ("has no draft model" in caplog.text) == (expected is not None)
    assert for_another(embedded_pair, given, device) == replace(given, head=None).on(device)
