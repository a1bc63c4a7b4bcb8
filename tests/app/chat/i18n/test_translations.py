"""The phrases of the page: the same ones in every language, and those that the code uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from outrider.app.chat import launch
from outrider.app.chat.i18n.translations import CATALOGUES, ERRORS, language_of
from outrider.pipelines import ACCEPTANCES, MODES, OutriderError

SOURCES = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(Path(launch.__file__).parent.rglob("*.py"))]
KEY_ARGUMENTS = {  # functions that take keys, and the positions of these
    "words": [0], "words_of": [0], "IN_ENGLISH": [0], "translate": [0], "toast": [0], "button_html": [0],
    "count": [1, 2], "Deletion": [0], "State": [1], "Example": [0],
}  # fmt: skip


def fields(phrase: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(phrase) if name is not None}


def keys_in_calls() -> Iterator[str]:
    """Patterns of the keys that calls name: f"mode_{mode}" stands for every key that begins with mode_."""
    for call in (node for tree in SOURCES for node in ast.walk(tree) if isinstance(node, ast.Call)):
        for at in KEY_ARGUMENTS.get(name_of(call.func), []):
            if at < len(call.args):
                yield from patterns(call.args[at])


def name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Call):  # words_of(request)("seed")
        return name_of(function.func)
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def patterns(argument: ast.expr) -> Iterator[str]:
    if isinstance(argument, ast.IfExp):
        yield from patterns(argument.body)
        yield from patterns(argument.orelse)
    elif isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield re.escape(argument.value)
    elif isinstance(argument, ast.JoinedStr):
        yield "".join(re.escape(part.value) if isinstance(part, ast.Constant) else r"(\w+)" for part in argument.values)


def test_every_language_has_the_same_phrases_with_the_same_fields() -> None:
    english = CATALOGUES["en"]
    for language, phrases in CATALOGUES.items():
        assert list(phrases) == list(english), language
        for key, phrase in phrases.items():
            assert fields(phrase) == fields(english[key]), (language, key)


def test_every_phrase_that_the_code_names_exists() -> None:
    named = set(keys_in_calls())
    assert len(named) > 80
    assert [key for key in named if not any(re.fullmatch(key, phrase) for phrase in CATALOGUES["en"])] == []


def test_every_phrase_is_used() -> None:
    nodes = (node for tree in SOURCES for node in ast.walk(tree))
    constants = {*MODES, *ACCEPTANCES, *(node.value for node in nodes if isinstance(node, ast.Constant))}
    named = set(keys_in_calls())

    def is_used(phrase: str) -> bool:
        found = (re.fullmatch(key, phrase) for key in named)
        return phrase in constants or any(match and constants.issuperset(match.groups()) for match in found)

    assert [phrase for phrase in CATALOGUES["en"] if not is_used(phrase)] == []


def test_every_error_that_is_translated_exists() -> None:
    def kinds(error: type[OutriderError]) -> set[str]:
        return {error.__name__}.union(*map(kinds, error.__subclasses__()))

    known = kinds(OutriderError) | {"HistoryDamaged", "HistoryNewer", "HistoryNotKept"}
    assert all(set(errors) <= known for errors in ERRORS.values())


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", "en"), ("*", "en"), ("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en-US,en;q=0.9,zh;q=0.5", "en"),
        ("fr,de;q=0.8", "en"), ("fr,zh-TW;q=0.8,en;q=0.5", "zh"), ("ZH", "zh"),
    ],
)  # fmt: skip
def test_the_language_is_the_first_of_ours_that_the_browser_names(accepted: str, language: str) -> None:
    assert language_of(accepted) == language
