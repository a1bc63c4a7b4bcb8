"""Traces of what windows of the page do while models are switched and pairs come and go, at random.

What was written to its end is what the same prompt, seed and settings give alone; what ended early is a beginning of
it. In the end nobody is being answered, and no pipeline holds a block for an answer.
"""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.app.chat.assistant import Assistant, StillLoading
from outrider.app.chat.core.conversation import CANCELLED, Turn
from outrider.app.chat.core.pairs import Choice
from outrider.app.chat.core.settings import Settings
from outrider.models import embedded_pair
from outrider.pipelines import LLMPipeline
from outrider.pipelines.config import MODES

PROMPTS = (
    "Rename `a` to `b`:\ndef double(a):\n    return a + a",
    "Repeat this function:\ndef area(width, height):\n    return width * height",
)
NEW_TOKENS = 24
VISITORS = st.sampled_from(("first", "second"))
ASKED = st.builds(
    Settings,
    mode=st.sampled_from([mode for mode in MODES if mode not in ("skip", "exit")]),  # which this pair has
    temperature=st.sampled_from((0.0, 1.0)),
    seed=st.integers(0, 2),
    max_new_tokens=st.just(NEW_TOKENS),
)
ACTIONS = st.one_of(
    st.tuples(st.just("ask"), st.tuples(VISITORS, st.sampled_from(PROMPTS), ASKED)),
    st.tuples(st.just("read"), st.integers(1, 8)),
    st.tuples(st.just("stop"), VISITORS),
    st.tuples(st.just("drop"), VISITORS),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("switch"), st.sampled_from(("kept", "fleeting"))),
    st.tuples(st.sampled_from(("wait", "delete", "restore")), st.none()),
)


def loaded(path: Path, device: str) -> LLMPipeline:
    return LLMPipeline(path, device, exact=True, cache_tokens=1024)


@cache
def first() -> LLMPipeline:
    return loaded(embedded_pair(), "CPU")


@cache
def alone(prompt: str, seed: int, temperature: float) -> tuple[int, ...]:
    """The answer's tokens where nobody else asks, without drafts."""
    asked = Settings(mode="off", temperature=temperature, seed=seed, max_new_tokens=NEW_TOKENS)
    return tuple(first().stream([{"role": "user", "content": prompt}], **asked.options()).finish().token_ids)


class Trace:
    """Answers are read piece by piece, as windows do, each by its turn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths = {name: folder / name for name in ("kept", "fleeting")}
        self.pipelines = [first()]
        self.assistant = Assistant(first(), "embedded", self._open, folder)
        self.assistant._warm_up(first())
        self.open: list[tuple[Turn, Iterator[object]]] = []
        self.last: dict[int, Turn] = {}
        self.num_ended = 0
        for name in self.paths:
            self.restore(name)

    def restore(self, name: str) -> None:
        if not self.paths[name].exists():
            shutil.copytree(embedded_pair(), self.paths[name])

    def ask(self, visitor: str, prompt: str, asked: Settings) -> None:
        turn = Turn(prompt, asked)
        self.open.append((turn, self.assistant.answer((turn,), asked, visitor)))

    def read(self, num_pieces: int) -> None:
        for _ in range(num_pieces):
            for opened in list(self.open):
                turn, pieces = opened
                try:
                    seen = next(pieces)
                except StopIteration:
                    self.open.remove(opened)
                    continue
                if isinstance(seen, Turn):
                    self.check(turn, seen)

    def leave(self, choice: int) -> None:
        """The window is closed in the middle of an answer."""
        if self.open:
            self.open.pop(choice % len(self.open))[1].close()  # type: ignore[attr-defined]

    def switch(self, name: str) -> None:
        try:
            self.assistant.switch(Choice(name, self.paths[name]), "CPU")
        except StillLoading:
            assert self.assistant.state.name == "warming"

    def wait(self) -> None:
        if self.assistant._warm_up_thread.is_alive():
            self.assistant._warm_up_thread.join()
        assert self.assistant.state.name in ("ready", "refused")

    def check(self, asked: Turn, seen: Turn) -> None:
        right = alone(asked.prompt, asked.settings.seed, asked.settings.temperature)
        if seen.finish_reason in (None, CANCELLED):
            assert seen.token_ids == right[: len(seen.token_ids)]
        else:
            assert seen.token_ids == right
            self.num_ended += 1

    def end(self) -> None:
        self.wait()
        while self.open:
            self.read(1)
        assert self.assistant._of() == []
        for pipeline in self.pipelines:
            for pool in (pipeline.speculation._pool, *(each.pool for each in pipeline.speculation._drafting)):
                assert pool.num_free == pool.num_blocks

    def _open(self, path: Path, device: str) -> LLMPipeline:
        self.pipelines.append(loaded(path, device))
        return self.pipelines[-1]


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(ACTIONS, min_size=4, max_size=16))
def test_every_answer_is_what_it_is_alone_whatever_is_switched_or_deleted(tmp_path_factory, actions) -> None:
    threads = set(threading.enumerate())
    trace = Trace(tmp_path_factory.mktemp("pairs"))
    for name, what in actions:
        if name == "ask":
            trace.ask(*what)
        elif name in ("stop", "drop"):
            getattr(trace.assistant, name)(what)
        elif name == "delete":
            shutil.rmtree(trace.paths["fleeting"], ignore_errors=True)
        elif name == "restore":
            trace.restore("fleeting")
        elif name == "wait":
            trace.wait()
        else:
            getattr(trace, name)(what)
    trace.end()
    del trace
    gc.collect()
    assert set(threading.enumerate()) <= threads
