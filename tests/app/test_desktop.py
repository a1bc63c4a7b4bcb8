"""The desktop window, driven as a person drives it, on a display that nobody sees."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.pipelines import CacheTooSmall, LLMPipeline, PromptTooLong

from .chat.scripted import BEGINNING, END, Refused, ScriptedPipeline

pytest.importorskip("tkinter", reason="this Python has no tkinter (Debian: apt install python3-tk)")

from .driver import PATIENCE_S, Driver

PROMPT = "Repeat this function:\ndef area(width, height):\n    return width * height"


class Scripted(ScriptedPipeline):
    """What the window needs in addition to what the page needs."""

    tokenizer = SimpleNamespace(has_chat_template=True)
    chats = 0

    def start_chat(self) -> None:
        self.chats += 1

    def stream(self, prompt: Any, **options: Any) -> Any:
        return super().stream(prompt, mode="auto", **options)


@pytest.fixture(scope="module")
def display() -> Iterator[str | None]:
    """A virtual display; systems other than Linux show the window."""
    if sys.platform != "linux":
        yield None
        return
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed (Debian: apt install xvfb)")
    reading, writing = os.pipe()
    command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1000x700x24", "-nolisten", "tcp"]
    with subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL) as server:
        os.close(writing)
        try:
            with os.fdopen(reading) as number:
                yield f":{number.readline().strip()}"
        finally:
            server.terminate()


@pytest.fixture
def drive(display: str | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Driver]]:
    if display is not None:
        monkeypatch.setenv("DISPLAY", display)
    drivers: list[Driver] = []

    def drive(load: Callable[[], Any]) -> Driver:
        drivers.append(Driver(load))
        return drivers[-1]

    yield drive
    for driver in drivers:
        driver.end()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    pipeline = Scripted()
    yield pipeline
    pipeline.warm.set()
    pipeline.gate.set()


@pytest.fixture
def loading(drive: Callable[..., Driver], scripted: Scripted) -> tuple[Driver, threading.Event]:
    """A window while the model loads, and what lets that end."""
    loaded = threading.Event()

    def load() -> Scripted:
        assert loaded.wait(PATIENCE_S)
        return scripted

    driver = drive(load)
    driver.until(lambda: driver.status == "Loading the models")
    return driver, loaded


@pytest.fixture
def answering(drive: Callable[..., Driver], scripted: Scripted) -> Driver:
    """A window in the middle of an answer to "hello"."""
    scripted.warm.set()
    driver = drive(lambda: scripted)
    driver.ready()
    driver.type("hello")
    driver.press("<Control-Return>")
    driver.until(lambda: BEGINNING in driver.text)
    return driver


def test_the_window_answers_while_the_model_loads_and_shows_how_far_it_is(loading, scripted) -> None:
    driver, loaded = loading
    driver.type("hi")
    driver.press("<Control-Return>")
    driver.until(lambda: driver.window.prompt.get("1.0", "end-1c") == "hi")  # nothing was sent, nothing is lost
    assert driver.window.progress.winfo_ismapped()
    loaded.set()
    driver.until(lambda: "Warming up" in driver.status)
    assert not driver.can(driver.window.send)
    scripted.warm.set()
    driver.until(lambda: driver.status == "Ready")
    assert driver.can(driver.window.send)
    assert not driver.window.progress.winfo_ismapped()


def test_an_answer_is_streamed_and_its_speed_is_shown(answering, scripted) -> None:
    assert END not in answering.text
    assert answering.text.startswith("hello\n\n")
    assert answering.window.prompt.get("1.0", "end-1c") == ""
    assert not answering.can(answering.window.send)
    scripted.gate.set()
    answering.until(lambda: answering.can(answering.window.send))
    assert BEGINNING + END in answering.text
    assert answering.status == "1234 tokens, 86.4 per second, 31 of 40 drafted tokens kept"
    assert scripted.requests[0][0] == "hello"
    assert scripted.chats == 1


@pytest.mark.parametrize("way", ["button", "key"])
def test_stop_ends_the_answer_with_what_there_is_and_the_next_prompt_is_answered(drive, scripted, way: str) -> None:
    scripted.warm.set()
    driver = drive(lambda: scripted)
    driver.ready()
    driver.type("hello")
    driver.click(driver.window.send)
    driver.until(lambda: BEGINNING in driver.text)
    if way == "button":
        driver.click(driver.window.stop)
    else:
        driver.press("<Escape>")
    driver.until(lambda: "stopped" in driver.status)
    assert END not in driver.text
    scripted.gate.set()
    driver.type("again")
    driver.press("<Control-Return>")
    driver.until(lambda: END in driver.text)


@pytest.mark.parametrize("way", ["stopping", "closing"])
def test_stopping_and_closing_do_not_wait_for_the_prompt_to_be_read(drive, scripted, way: str) -> None:
    scripted.warm.set()
    scripted.read_tokens = 0  # the prompt is read for ever
    driver = drive(lambda: scripted)
    driver.ready()
    driver.type("hello")
    driver.press("<Control-Return>")
    driver.until(lambda: bool(scripted.streams))
    if way == "stopping":
        driver.press("<Escape>")
        driver.until(lambda: "stopped" in driver.status)
    else:
        driver.leave()
        driver.until(lambda: driver.closed)


def test_escape_while_the_model_loads_does_not_leave_the_warm_up_out(loading, scripted) -> None:
    driver, loaded = loading
    driver.press("<Escape>")
    loaded.set()
    driver.until(lambda: driver.status != "Loading the models")
    assert "Warming up" in driver.status
    scripted.warm.set()


@pytest.mark.parametrize("way", ["button", "key"])
def test_a_new_chat_begins_with_the_next_prompt_and_keeps_what_is_typed(drive, scripted, way: str) -> None:
    scripted.warm.set()
    scripted.gate.set()
    driver = drive(lambda: scripted)
    driver.ready()
    for prompt in ("one", "two"):
        driver.type(prompt)
        driver.press("<Control-Return>")
        driver.ready()
    assert scripted.chats == 1
    driver.type("three")
    if way == "button":
        driver.click(driver.window.new)
    else:
        driver.press("<Control-n>")
    driver.until(lambda: "New chat" in driver.text)
    driver.press("<Control-Return>")
    driver.ready()
    assert scripted.chats == 2
    assert [prompt for prompt, _ in scripted.requests] == ["one", "two", "three"]


def test_no_chat_begins_in_the_middle_of_an_answer(answering, scripted) -> None:
    answering.press("<Control-n>")
    answering.click(answering.window.new)
    assert "New chat" not in answering.text
    scripted.gate.set()
    answering.ready()
    answering.type("more")
    answering.press("<Control-Return>")
    answering.ready()
    assert scripted.chats == 1


@pytest.mark.parametrize("error", [PromptTooLong, CacheTooSmall])
def test_a_full_conversation_is_said_so_and_a_new_one_takes_the_refused_prompt(answering, scripted, error) -> None:
    scripted.gate.set()
    answering.ready()
    scripted.refusal = error("The prompt has 2060 tokens.")
    answering.type("more")
    answering.press("<Control-Return>")
    answering.until(lambda: "This conversation is full" in answering.text and answering.can(answering.window.send))
    assert answering.window.prompt.get("1.0", "end-1c") == "more"
    scripted.refusal = None
    answering.press("<Control-n>")
    answering.press("<Control-Return>")
    answering.ready()
    assert scripted.requests[-1][0] == "more"
    assert scripted.chats == 2


def test_a_first_prompt_that_is_too_long_is_not_blamed_on_the_conversation(drive, scripted) -> None:
    scripted.warm.set()
    scripted.refusal = PromptTooLong("The prompt has 2060 tokens.")
    driver = drive(lambda: scripted)
    driver.ready()
    driver.type("hello")
    driver.press("<Control-Return>")
    driver.until(lambda: "2060 tokens" in driver.text)
    assert "full" not in driver.text


def test_a_prompt_keeps_the_indentation_of_its_first_line(drive, scripted) -> None:
    scripted.warm.set()
    scripted.gate.set()
    driver = drive(lambda: scripted)
    driver.ready()
    driver.window.prompt.insert("1.0", "    def area(self):\n        return 1\n")
    driver.press("<Control-Return>")
    driver.ready()
    assert scripted.requests[0][0] == "    def area(self):\n        return 1"


def test_a_refused_prompt_comes_back_before_what_was_typed_since(drive, scripted) -> None:
    scripted.warm.set()
    scripted.refusal = Refused("The prompt has too many words.")
    driver = drive(lambda: scripted)
    driver.ready()
    driver.window.prompt.insert("1.0", "first")
    driver.press("<Control-Return>")
    driver.window.prompt.insert("1.0", "second")
    driver.ready()
    assert driver.window.prompt.get("1.0", "end-1c") == "first\nsecond"


def test_closing_in_the_middle_of_an_answer_ends_window_and_thread(answering, scripted) -> None:
    answering.leave()
    answering.until(lambda: answering.closed)
    assert scripted.streams[0].cancelled
    assert not answering.model.is_alive()


def test_closing_while_the_model_warms_up_waits_for_it_out_of_sight(drive, scripted) -> None:
    driver = drive(lambda: scripted)
    driver.until(lambda: "Warming up" in driver.status)
    driver.leave()
    driver.until(lambda: driver.root.state() == "withdrawn")
    assert driver.model.is_alive()
    scripted.warm.set()
    driver.until(lambda: driver.closed)


def test_a_prompt_that_is_refused_is_said_and_the_next_one_is_answered(drive, scripted) -> None:
    scripted.warm.set()
    scripted.gate.set()
    scripted.refusal = Refused("The prompt has too many words.")
    driver = drive(lambda: scripted)
    driver.ready()
    driver.type("hello")
    driver.press("<Control-Return>")
    driver.until(lambda: "too many words" in driver.text and driver.can(driver.window.send))
    scripted.refusal = None
    driver.press("<Control-Return>")  # the prompt was given back
    driver.until(lambda: END in driver.text)
    assert [prompt for prompt, _ in scripted.requests] == ["hello", "hello"]


def test_a_pair_that_cannot_be_loaded_is_said_so(drive, tmp_path: Path) -> None:
    driver = drive(lambda: LLMPipeline(tmp_path / "nowhere"))
    driver.until(lambda: "There is no folder" in driver.text)
    assert driver.status == "The model did not start"
    assert not driver.can(driver.window.send)


def test_the_embedded_pair_answers_in_the_window_and_closing_stops_it(drive, embedded_pair: Path) -> None:
    driver = drive(lambda: LLMPipeline(embedded_pair))
    driver.ready()
    driver.window.prompt.insert("1.0", PROMPT)
    driver.press("<Control-Return>")
    driver.until(lambda: driver.can(driver.window.send))
    assert driver.text.strip().endswith("def area(width, height):\n    return width * height")
    assert "per second" in driver.status
    driver.window.prompt.insert("1.0", "Write a long story.")
    driver.press("<Control-Return>")
    driver.until(lambda: not driver.can(driver.window.send))
    driver.leave()
    driver.until(lambda: driver.closed)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [("sys.modules['_tkinter'] = None", "apt install python3-tk"), ("os.environ.pop('DISPLAY', 0)", "on a desktop")],
)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is always a display")
def test_without_tkinter_or_a_display_one_line_says_what_to_do(prepare: str, words: str) -> None:
    program = f"import os, runpy, sys; {prepare}; runpy.run_module('outrider.app.desktop', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interrupt_in_the_terminal_closes_the_window_and_ends_the_program(display) -> None:
    """The interrupt comes while the model warms up; then its thread waits for a prompt."""
    program = """if True:
        import signal
        from types import SimpleNamespace
        from outrider.app import desktop

        def interrupt():
            signal.raise_signal(signal.SIGINT)

        pipeline = SimpleNamespace(warm_up=interrupt, tokenizer=SimpleNamespace(has_chat_template=False))
        desktop.LLMPipeline = lambda pair: pipeline
        desktop.main()
    """
    environment = os.environ if display is None else {**os.environ, "DISPLAY": display}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (130, "")
