"""Tokenizer, and TextStream, which turns tokens into text without ever splitting a character."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import openvino_genai
import regex

from ..errors import BrokenPair, InvalidOption, reason_of

INCOMPLETE = "\ufffd"  # detokenizers write it for a character of which bytes are missing
GRAPHEME = regex.compile(r"\X")
TAKEN_BACK = 4  # tokens whose text one may change: a space, and "n't" in pieces

# The operations of detokenizers whose text for a token does not depend on its neighbours.
CONTEXT_FREE = frozenset(
    ("Parameter", "Const", "Convert", "VocabDecoder", "ByteFallback", "FuzeRagged", "UTF8Validate", "StringTensorPack",
     "Result")
)  # fmt: skip


class Tokenizer:
    """A pair's tokenizer and chat template. Raises BrokenPair if its files are missing or damaged.

    If the text of a token does not depend on its neighbours, texts are concatenated from cached texts of single tokens,
    since between two passes of a model, when the processor's caches are cold, running the detokenizer takes long.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._tokenizer = openvino_genai.Tokenizer(folder)
        except RuntimeError as error:
            raise BrokenPair(f"The tokenizer in {folder} cannot be loaded: export the pair again. ({error})") from error
        self._is_context_free = _is_context_free(folder / "openvino_detokenizer.xml")
        self._texts: dict[int, str] = {}  # of single tokens
        self.takes_back = not self._is_context_free and self._takes_back()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Raises InvalidOption for text that cannot be written as UTF-8."""
        _check_encodable(text)
        encoded = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).input_ids.data
        ids = [int(i) for i in encoded.ravel()]
        if self._is_context_free:
            self._learn(ids)  # an answer will repeat many of them
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.decode_batch([ids])[0] if ids else ""

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """The text of each of several lists of ids, none of them empty, in one call."""
        if self._is_context_free:
            self._learn(token for ids in batch for token in ids)
            texts = ["".join([self._texts[token] for token in ids]) for ids in batch]
            if not any(INCOMPLETE in text for text in texts):  # else tokens end within a character
                return texts
        return self._tokenizer.decode([list(ids) for ids in batch])

    def _takes_back(self) -> bool:
        """Whether a token can change the text before it: with "clean_up_tokenization_spaces" a mark takes the space
        before it away."""
        return any(mark not in self.decode(self.encode(f"a{mark}", add_special_tokens=False)) for mark in (" ,", " ?"))

    def _learn(self, ids: Iterable[int]) -> None:
        if unknown := [[token] for token in set(ids).difference(self._texts)]:
            self._texts.update(zip((token for (token,) in unknown), self._tokenizer.decode(unknown), strict=True))

    @property
    def eos_token_id(self) -> int | None:
        token_id = self._tokenizer.get_eos_token_id()
        return token_id if token_id >= 0 else None

    @property
    def vocabulary(self) -> dict[bytes, int]:
        return self._tokenizer.get_vocab()

    @cached_property
    def vocabulary_size(self) -> int:
        """Every token's id is below it."""
        return 1 + max(self.vocabulary.values(), default=-1)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    @property
    def chat_template(self) -> str:
        """The template's text; empty if there is none."""
        return self._tokenizer.chat_template

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        extra_context: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The text of a prompt for a conversation.

        tools: those that the model may call. extra_context: additional variables of the template.

        Raises InvalidOption for messages that the template refuses, and where there is no template.
        """
        if not self.has_chat_template:
            raise InvalidOption("This model has no chat template, so it takes no messages: give the prompt as text.")
        for value in (value for message in messages for value in message.values()):
            if isinstance(value, str):
                _check_encodable(value)
        given: dict[str, Any] = {"tools": [dict(tool) for tool in tools]} if tools else {}
        if extra_context:
            given["extra_context"] = dict(extra_context)
        try:
            return self._tokenizer.apply_chat_template([dict(m) for m in messages], add_generation_prompt, **given)
        except RuntimeError as error:
            reason = str(error).partition("Minja's error: ")[2].partition(" at row ")[0] or reason_of(error)
            raise InvalidOption(f"The chat template of this model refuses these messages: {reason}") from error
        except (TypeError, ValueError) as error:
            raise InvalidOption(
                f"These messages cannot be written as JSON, which chat templates read ({error}): give text, numbers, "
                "lists and dictionaries."
            ) from error


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidOption(
            f"The prompt has half a surrogate pair in place {error.start}, which is no character: leave it out."
        ) from error


def _is_context_free(detokenizer: Path) -> bool:
    if not detokenizer.is_file():
        return False
    layers = ElementTree.parse(detokenizer).iterfind("./layers/layer")
    return CONTEXT_FREE.issuperset(layer.get("type", "") for layer in layers)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text, and who proposed its tokens."""

    text: str
    source: str


class TextStream:
    """Turns tokens into text as they come, and finds stop strings.

    Text is held back as long as later tokens could change it: an incomplete character, the last grapheme cluster
    (Unicode annex 29: a combining mark or an emoji modifier may follow), the beginning of a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Iterable[str] = (), include_stop: bool = False) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(sorted(stop_strings))
        self._include_stop = include_stop
        self._ids: list[int] = []  # from the last token after which the text was clean: context for the next
        self._read = ""  # the part of their text that was read already
        self._held: list[Span] = []
        self._sources: list[str] = []  # of these tokens, where one can change the text before it
        self._last_source = ""
        self._tail = ""  # the end of the text so far, as long as a stop string can reach back
        self.stopped = False

    def extend(self, tokens: Sequence[int], sources: Sequence[str]) -> int:
        """Take tokens; returns how many: all, or those up to the one that completed a stop string."""
        if self._tokenizer.takes_back:
            return self._extend_with_care(tokens, sources)
        steps = [[*self._ids, *tokens[: i + 1]] for i in range(len(tokens))]
        texts = self._tokenizer.decode_batch([*steps, *([token] for token in tokens)])
        read, last_clean = self._read, None
        self._last_source = sources[-1]
        for i, source in enumerate(sources):
            whole = texts[i].rstrip(INCOMPLETE)
            self._append(whole[len(read) :], source)
            read = max(read, whole, key=len)
            if whole == texts[i] and texts[len(tokens) + i]:  # some detokenizers strip a space where no text is before
                last_clean = i
            if self.stopped:
                return i + 1
        if last_clean is None:
            self._ids, self._read = [*self._ids, *tokens], read
        else:
            self._ids = list(tokens[last_clean:])
            self._read = texts[len(tokens) + last_clean] + read[len(texts[last_clean]) :]
        return len(tokens)

    def _extend_with_care(self, tokens: Sequence[int], sources: Sequence[str]) -> int:
        """`extend` where a token can change the text of the few before it."""
        for i, (token, source) in enumerate(zip(tokens, sources, strict=True)):
            self._ids = [*self._ids, token]
            self._sources = [*self._sources, source]
            whole = self._tokenizer.decode(self._ids)
            seen = self._tail + whole.rstrip(INCOMPLETE)[len(self._read) :]
            if any(stop in seen for stop in self._stops):
                self._append_all()
                return i + 1
            if len(self._ids) <= TAKEN_BACK:
                continue
            settled = _same_beginning(whole, self._tokenizer.decode(self._ids[:-TAKEN_BACK])).rstrip(INCOMPLETE)
            self._append(settled[len(self._read) :], self._sources[-TAKEN_BACK - 1])
            self._read = max(self._read, settled, key=len)
            self._forget(whole)
        return len(tokens)

    def _append_all(self) -> None:
        """Append what is left of the text, each part with the source of the token that ends it."""
        texts = self._tokenizer.decode_batch([self._ids[: i + 1] for i in range(len(self._ids))])
        for text, source in zip(texts, self._sources, strict=True):
            part = _same_beginning(text, texts[-1])
            self._append(part[len(self._read) :], source)
            self._read = max(self._read, part, key=len)

    def _forget(self, whole: str) -> None:
        """Shorten the context where its parts have the text of the whole."""
        if len(self._ids) < 8 * TAKEN_BACK:
            return
        first, last = self._ids[: -3 * TAKEN_BACK], self._ids[-3 * TAKEN_BACK :]
        texts = self._tokenizer.decode_batch([first, last])
        if "".join(texts) == whole and len(texts[0]) <= len(self._read):
            self._ids, self._sources = last, self._sources[-len(last) :]
            self._read = self._read[len(texts[0]) :]

    def take(self, final: bool = False) -> tuple[Span, ...]:
        """The text that can no longer change, with its sources; with `final`, all that is left."""
        if final and not self.stopped:
            if self._sources:
                self._append_all()
            else:
                whole = self._tokenizer.decode(self._ids)
                self._append(whole[len(self._read) :], self._last_source)
                self._read = whole
        held = "".join(span.text for span in self._held)
        ready = len(held) if final or self.stopped else self._settled(held)
        taken, self._held = _split(self._held, ready)
        return taken

    def _append(self, text: str, source: str) -> None:
        if not text or self.stopped:
            return
        before = len(self._tail)
        seen = self._tail + text
        self._held.append(Span(text, source))
        ends = [(seen.find(stop, max(0, before - len(stop) + 1)), stop) for stop in self._stops]
        found = [(start + len(stop), start) for start, stop in ends if start >= 0]
        if found:
            end, start = min(found)
            surplus = len(seen) - (end if self._include_stop else start)
            held = sum(len(span.text) for span in self._held)
            self._held = list(_split(self._held, held - surplus)[0])
            self.stopped = True
        longest = max(map(len, self._stops), default=0)
        self._tail = seen[-longest:] if longest else ""

    def _settled(self, held: str) -> int:
        """How many characters of the held text can no longer change."""
        if not held:
            return 0
        stop_prefix = max(
            (n for stop in self._stops for n in range(1, min(len(stop), len(held) + 1)) if held.endswith(stop[:n])),
            default=0,
        )
        end = len(held) - stop_prefix
        return max(match.start() for match in GRAPHEME.finditer(held) if match.start() <= end)


def _same_beginning(one: str, other: str) -> str:
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _split(spans: Sequence[Span], at: int) -> tuple[tuple[Span, ...], list[Span]]:
    """The first `at` characters, neighbours of one source joined, and the rest."""
    first: list[Span] = []
    rest: list[Span] = []
    for span in spans:
        if at > 0:
            first.append(Span(span.text[:at], span.source))
        if span.text[max(at, 0) :]:
            rest.append(Span(span.text[max(at, 0) :], span.source))
        at -= len(span.text)
    joined = (Span("".join(s.text for s in group), source) for source, group in groupby(first, lambda s: s.source))
    return tuple(joined), rest
