"""Export and import of conversations: as JSON with everything, or as Markdown with the text of the shown branch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from outrider.pipelines import OutriderError, Span
from outrider.pipelines.engine.trace import TARGET

from ..core.code import code_start, is_python
from ..core.conversation import File, Turn
from .history import Node, title_of
from .record import turn_record, validated

FORMAT = "outrider-chat"
VERSION = 1
LARGEST_IMPORT = 32 << 20  # bytes, which is also what can be uploaded at once
LARGEST_TEXT = 4_000_000  # characters of all prompts, files and answers, which the page renders together
MOST_TURNS = 1_000
MOST_FILES = 1_000  # of one prompt

_Index = Annotated[int, Field(ge=0)]
_FENCE = "```"
_MARK = re.compile(r"^(\\*)(#{1,2} .*<!-- (title|prompt|file|answer)(?: code (\d{1,9}))? -->)[ \t]*$")


class BadImport(OutriderError):
    """A file that is not an exported conversation."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exported or imported conversation: the arguments of `History.insert`."""

    title: str
    turns: tuple[tuple[int | None, Turn], ...]
    tip: int | None


@dataclass(frozen=True, slots=True)
class _Place:
    """The values of an imported turn that `Turn` does not check."""

    parent: _Index | None = None
    files: Annotated[tuple[Any, ...], Field(max_length=MOST_FILES)] = ()


@dataclass(frozen=True, slots=True)
class _Import:
    """The values of an imported JSON file. `places` and `turns` are both read from its list of turns."""

    title: str
    places: Annotated[tuple[_Place, ...], Field(alias="turns", max_length=MOST_TURNS)]
    turns: tuple[Turn, ...]
    tip: _Index | None = None

    def __post_init__(self) -> None:
        for index, place in enumerate(self.places):
            if place.parent is not None and place.parent >= index:
                raise ValueError(f"the parent of turn {index} does not come before it")
        if self.tip is not None and self.tip >= len(self.turns):
            raise ValueError("the tip is not in the list of turns")


_IMPORT = TypeAdapter(_Import)


def exchange_of(title: str, tree: Sequence[Node], tip: int | None) -> Exchange:
    """A stored conversation, with the ids of its turns replaced by their indices. `tip` is the id of a turn."""
    places = {node.id: place for place, node in enumerate(tree)}
    turns = tuple((None if node.parent is None else places[node.parent], node.turn) for node in tree)
    return Exchange(title, turns, None if tip is None else places[tip])


def to_json(exchange: Exchange) -> str:
    turns = [{"parent": parent, **turn_record(turn)} for parent, turn in exchange.turns]
    whole = {"format": FORMAT, "version": VERSION, "title": exchange.title, "tip": exchange.tip, "turns": turns}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"


def to_markdown(title: str, path: Sequence[Turn]) -> str:
    """Markdown in which a hidden mark after each heading says what follows. Lines of text that look like a heading with
    a mark are escaped with a backslash.

    Code without a fence gets one, and the mark then has the number of the line at which it begins.
    """
    parts = [f"# {' '.join(title.split())} <!-- title -->\n"]
    for turn in path:
        parts += _section("Prompt", "prompt", turn.prompt, code_start(turn.prompt))
        for file in turn.files:
            parts += _section(" ".join(file.name.split()), "file", file.text, 0, language="")
        parts += _section("Answer", "answer", turn.text, 0 if is_python(turn.text) else None)
    return "\n".join(parts)


def read_exchange(content: bytes) -> Exchange:
    """Read the output of `to_json` or `to_markdown`. Raises BadImport and BadRecord."""
    if len(content) > LARGEST_IMPORT:
        raise BadImport(f"The file has {len(content):,} bytes, but at most {LARGEST_IMPORT:,} can be imported.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadImport(
            f"This is not a text file in UTF-8 ({error.reason}): choose one that Outrider exported."
        ) from error
    exchange = _from_json(text) if text.lstrip().startswith("{") else _from_markdown(text)
    _check_text(turn for _, turn in exchange.turns)
    return exchange


def _from_json(text: str) -> Exchange:
    try:
        whole: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadImport(f"This is not a valid JSON file ({reason}): choose one that Outrider exported.") from error
    if whole.get("format") != FORMAT or whole.get("version") != VERSION:
        raise BadImport(
            f"This is not a conversation that Outrider exported (format {FORMAT!r}, version {VERSION}): choose "
            "another one, or update Outrider."
        )
    read = validated(_IMPORT, whole)
    return Exchange(read.title, tuple(zip((place.parent for place in read.places), read.turns, strict=True)), read.tip)


def _check_count(count: int) -> None:
    if count > MOST_TURNS:
        raise BadImport(f"The conversation has {count:,} turns, but at most {MOST_TURNS:,} can be imported.")


def _check_text(turns: Iterable[Turn]) -> None:
    length = sum(len(turn.prompt) + len(turn.text) + sum(len(file.text) for file in turn.files) for turn in turns)
    if length > LARGEST_TEXT:
        raise BadImport(f"The conversation has {length:,} characters, but at most {LARGEST_TEXT:,} can be imported.")


def _from_markdown(text: str) -> Exchange:
    if text.count("\r\n") == text.count("\n"):  # another program ended the lines like this: Outrider's end in \n
        text = text.replace("\r\n", "\n")
    title, sections = "", _sections(text)
    _check_count(sum(kind == "prompt" for kind, _, _ in sections))
    turns: list[Turn] = []
    for kind, heading, body in sections:
        if kind == "title":
            title = heading
        elif kind == "prompt":
            turns.append(Turn(body, finish_reason="stop"))
        elif not turns:
            raise BadImport(f"The file has a section of kind {kind!r} before the first prompt: put a prompt before it.")
        else:
            last = turns[-1]
            files = (*last.files, File(heading, body)) if kind == "file" else last.files
            spans = (Span(body, TARGET),) if kind == "answer" and body else last.spans
            turns[-1] = Turn(last.prompt, files=files, spans=spans, finish_reason="stop")
    if not turns:
        raise BadImport("The file has no prompt: choose one that Outrider exported as JSON or Markdown.")
    line = tuple((place - 1 if place else None, turn) for place, turn in enumerate(turns))
    return Exchange(title or title_of(turns[0].prompt), line, len(turns) - 1)


def _sections(text: str) -> list[tuple[str, str, str]]:
    """Kind, heading and body of each section."""
    sections: list[tuple[str, str, int | None, list[str]]] = []
    for line in text.split("\n"):
        if (mark := _MARK.match(line)) and not mark[1]:
            heading = mark[2].lstrip("#").rpartition("<!--")[0].strip()
            sections.append((mark[3], heading, None if mark[4] is None else int(mark[4]), []))
        elif sections:
            sections[-1][3].append(line[1:] if mark else line)
    texts = ("\n".join(body).removeprefix("\n").removesuffix("\n") for *_, body in sections)
    return [(kind, heading, _unfenced(text, at)) for (kind, heading, at, _), text in zip(sections, texts, strict=True)]


def _section(heading: str, kind: str, text: str, code: int | None, language: str = "python") -> list[str]:
    """A heading and a text, fenced from the character with index `code` on."""
    lines = ["\\" + line if _MARK.match(line) else line for line in text.split("\n")]
    mark = kind
    if code is not None and text.strip() and _FENCE not in text:
        at = text.count("\n", 0, code)
        lines = [*lines[:at], _FENCE + language, *lines[at:], _FENCE]
        mark = f"{kind} code {at}"
    return [f"## {heading} <!-- {mark} -->\n", "\n".join(lines) + "\n"]


def _unfenced(text: str, at: int | None) -> str:
    """The text without the fence that `to_markdown` put before line `at` and after the last one."""
    lines = text.split("\n")
    if at is None or len(lines) < at + 2 or not lines[at].startswith(_FENCE) or lines[-1] != _FENCE:
        return text
    return "\n".join([*lines[:at], *lines[at + 1 : -1]])
