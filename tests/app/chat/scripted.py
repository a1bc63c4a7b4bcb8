"""A pipeline that answers from a script and waits where it is told to, so that a test sees every state of the page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from outrider.pipelines import Generation, OutriderError, Piece, Span, Statistics
from outrider.pipelines.engine.trace import PassRecord

BEGINNING = "def area(width, height):\n    # <b>&amp;</b>\n"
END = "    return width * height\n"
PROMPT_TOKENS = 2000
SOURCES = {"off": "target", "lookup": "prompt_lookup", "draft": "draft_model", "auto": "suffix"}
STATS = Statistics(
    prompt_tokens=9, cached_tokens=0, new_tokens=1234, passes=7, drafted=40, accepted=31,
    drafted_by={"suffix": 40}, accepted_by={"suffix": 31}, ttft_s=0.01, tokens_per_s=86.4, target_s=0.4, draft_s=0.0,
    total_s=0.5,
)  # fmt: skip

TRACE = (
    PassRecord(0.0, 0.1, 0.1, 0.0, 9, (), ("target",)),
    PassRecord(0.1, 0.2, 0.1, 0.0, 4, ("suffix",) * 3, ("suffix", "suffix", "target")),
)


class ScriptedCost:
    """Every pass costs the same."""

    def pass_ms(self, windows: list[tuple[int, int]]) -> float:
        return 80.0


class ScriptedSpeculation:
    """Counts how often the cache was emptied."""

    cost = ScriptedCost()
    emptied = 0

    def forget_prompts(self) -> None:
        self.emptied += 1


class ScriptedStream:
    """Gives BEGINNING once the prompt is read, waits for the gate or for `cancel`, then gives END or ends.

    `passes` were run until then.
    """

    def __init__(self, gate: threading.Event, source: str, end_token: int, read_tokens: int) -> None:
        self._gate = gate
        self._source = source
        self._end_token = end_token
        self._begun = False
        self.prompt_tokens = PROMPT_TOKENS
        self.read_tokens = read_tokens
        self.cancelled = False
        self.ended = False
        self.passes = 1

    def __enter__(self) -> ScriptedStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Piece]:
        while not self.ended:
            if (piece := self.advance()) is not None:
                yield piece

    def advance(self) -> Piece | None:
        if self.cancelled:
            self.ended = True
            return Piece("", (), (), (), "cancelled", STATS)
        if self.read_tokens < self.prompt_tokens:
            time.sleep(0.02)
            return None
        if not self._begun:
            self._begun = True
            return piece(BEGINNING, self._source)
        if self._gate.wait(0.02):
            self.ended = True
            return Piece(END, (self._end_token,), ("target",), (Span(END, "target"),), "stop", STATS)
        return None if self.cancelled else piece("", self._source)

    @property
    def trace(self) -> tuple[PassRecord, ...]:
        return TRACE if self._gate.is_set() else TRACE[: self.passes]

    def cancel(self) -> None:
        self.cancelled = True

    def finish(self) -> Generation:
        return Generation("", (), (), (), "stop", STATS, TRACE)


class ScriptedTokenizer:
    """A token a character; the template puts a role and a colon before each message."""

    has_chat_template = True
    vocabulary: ClassVar[dict[bytes, int]] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def apply_chat_template(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return "".join(f"{message['role']}:{message['content']}" for message in messages)


class ScriptedPipeline:
    """Stands in for LLMPipeline. `warm` and `gate` hold the warm-up and the answers back; `requests` remembers them."""

    modes = ("off", "lookup", "suffix", "draft", "chained", "auto")
    device = draft_device = "CPU"
    has_fallen_back = False
    max_context = 2048
    exact = True
    tokenizer = ScriptedTokenizer()
    end_token = 2
    read_tokens = PROMPT_TOKENS  # when an answer begins

    @property
    def plans(self) -> bool:
        return len(self.modes) > 1

    def __init__(self) -> None:
        self.warm = threading.Event()
        self.gate = threading.Event()
        self.speculation = ScriptedSpeculation()
        self.refusal: Exception | None = None
        self.requests: list[tuple[list[dict[str, str]], dict[str, Any]]] = []
        self.streams: list[ScriptedStream] = []

    def warm_up(self) -> None:
        self.warm.wait()

    def stream(self, messages: list[dict[str, str]], **options: Any) -> ScriptedStream:
        self.requests.append((messages, options))
        if self.refusal is not None:
            raise self.refusal
        self.streams.append(ScriptedStream(self.gate, SOURCES[options["mode"]], self.end_token, self.read_tokens))
        return self.streams[-1]


class Refused(OutriderError):
    """What a test lets the pipeline raise."""


def piece(text: str, source: str) -> Piece:
    return Piece(text, (1,) if text else (), (source,) if text else (), (Span(text, source),) if text else ())
