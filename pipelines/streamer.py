"""Streamers: what a program gives to `generate` to follow an answer, as OpenVINO GenAI takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import openvino_genai

from .errors import InvalidOption
from .results import Piece
from .stream import Stream
from .text.tokenizer import INCOMPLETE, Tokenizer

Streamer: TypeAlias = Callable[[str], Any] | openvino_genai.StreamerBase

RUNNING, CANCEL = (getattr(openvino_genai.StreamingStatus, name).value for name in ("RUNNING", "CANCEL"))


class WholeTokens:
    """The tokens of an answer whose text was given out, and not those that stand for a stop string.

    include_stop: the stop string is a part of the answer. Then its last token is given out as a whole, even if only the
        beginning of its text is.
    """

    def __init__(self, tokenizer: Tokenizer, include_stop: bool) -> None:
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._ids: list[int] = []
        self._text = ""
        self._num_given = 0

    def of(self, piece: Piece) -> list[int]:
        """The tokens that can be given out now."""
        self._ids += piece.token_ids
        self._text += piece.text
        given = self._num_given
        while self._num_given < len(self._ids):
            text = self._tokenizer.decode(self._ids[: self._num_given + 1])
            if not self._text.startswith(text.rstrip(INCOMPLETE)):
                break
            self._num_given += 1
        if piece.finish_reason == "stop" and self._include_stop:
            while len(self._tokenizer.decode(self._ids[: self._num_given])) < len(self._text):
                self._num_given += 1
        return self._ids[given : self._num_given]


def check_streamer(streamer: object) -> None:
    """Raises InvalidOption."""
    if not (callable(streamer) or isinstance(streamer, openvino_genai.StreamerBase)):
        raise InvalidOption(f"streamer={streamer!r} cannot be called: give a function or a StreamerBase.")
    parser = openvino_genai.TextParserStreamer
    if isinstance(streamer, parser) and type(streamer).write is parser.write:  # which would crash
        raise InvalidOption("A TextParserStreamer has no `write` of its own: derive a class from it that has one.")


def feed(stream: Stream, streamer: Streamer, whole: WholeTokens | None) -> bool:
    """Feed the stream to the streamer until the latter stops it; returns whether a chat is to forget the turn.

    whole: for an answer with stop strings, of which text is held back. Raises InvalidOption.
    """
    forget = False
    if isinstance(streamer, openvino_genai.TextParserStreamer):
        streamer.reset()
    for piece in stream:
        if isinstance(streamer, openvino_genai.StreamerBase):
            tokens = list(piece.token_ids) if whole is None else whole.of(piece)
            answer: Any = _write(streamer, tokens) if tokens or whole is None else None
        else:
            answer = streamer(piece.text)
        status = _status(answer)
        if status != RUNNING:
            stream.cancel()
            forget = status == CANCEL
            break
    if isinstance(streamer, openvino_genai.StreamerBase):
        streamer.end()
    return forget


def _write(streamer: openvino_genai.StreamerBase, tokens: list[int]) -> Any:
    if isinstance(streamer, openvino_genai.TextParserStreamer):
        return streamer._write(tokens)  # in Python its `write` takes what was parsed of them
    return streamer.write(tokens)


def _status(answer: Any) -> int:
    """What a streamer returned, as the number of a StreamingStatus: None and False go on, True stops. Raises
    InvalidOption."""
    try:
        return int(answer.value if isinstance(answer, openvino_genai.StreamingStatus) else answer or RUNNING)
    except (TypeError, ValueError) as error:
        raise InvalidOption(
            f"The streamer returned {answer!r}: return a StreamingStatus, True to stop, or nothing."
        ) from error
