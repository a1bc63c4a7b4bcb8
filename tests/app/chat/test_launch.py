"""Opening the page."""

from __future__ import annotations

import os
import signal
import socket
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.app.chat import launch
from outrider.app.chat.assistant import Assistant
from outrider.app.chat.launch import AddressTaken, for_another, open_page, serve
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


@pytest.fixture
def ended(pipeline: ScriptedPipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What has ended, where `serve` has a scripted pipeline; a second signal comes while the warm-up is waited for."""
    ended: list[str] = []

    def close(assistant: Assistant) -> None:
        signal.raise_signal(signal.SIGINT)
        ended.append("the warm-up")

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(LoadOptions, "load", lambda options, pair: pipeline)
    monkeypatch.setattr(Assistant, "close", close)
    yield ended
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_signals_that_come_early_or_twice_do_not_break_off_the_warm_up(
    ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "open_page", lambda *arguments: signal.raise_signal(signal.SIGTERM))
    serve(Path("mine"), LoadOptions(), port=free_port())
    assert ended == ["the warm-up"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_an_address_that_is_taken_while_the_model_is_loaded_is_said_plainly(
    ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:

        def history_path() -> Path:  # the last step before the page opens
            other.bind(("127.0.0.1", port))
            other.listen()
            return Path(":memory:")

        port = free_port()
        monkeypatch.setattr(launch, "history_path", history_path)
        with pytest.raises(AddressTaken, match="stop what uses it"):
            serve(Path("mine"), LoadOptions(), port=port)
    assert ended == ["the warm-up"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_a_terminal_tells_what_is_being_loaded(
    ended: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "open_page", lambda *arguments: signal.raise_signal(signal.SIGINT))
    monkeypatch.setenv("FORCE_COLOR", "1")
    serve(Path("mine"), LoadOptions(), port=free_port())
    assert "Loading mine on CPU" in capsys.readouterr().err
