"""GBNF: the notation of llama.cpp's grammars (https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md).

llguidance converts it to Lark's, but gets some of it wrong: escapes such as `\\u00e9`, characters in classes that mean
something else in its regular expressions, rules whose names differ in case only, lines that begin with `|`, and
repetitions of repetitions. So a grammar is first rewritten in the part of GBNF that it converts correctly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llguidance.gbnf_to_lark import gbnf_to_lark

LARK = re.compile(r"^\s*(?:%llguidance\b|start\s*:(?!:=))", re.MULTILINE)  # what a grammar in Lark's notation has
ROOT = "root"
ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU])"
CHARACTER = re.compile(rf"{ESCAPE}|[^\\]", re.DOTALL)
TOKEN = re.compile(
    rf"""
    (?P<literal>"(?:{ESCAPE}|[^"\\])*") | (?P<characters>\[(?:{ESCAPE}|[^\]\\])*\]) | (?P<unended>["\[].*)
    | (?P<comment>\#[^\n]*)
    | (?P<defined>[\w-]+)(?=\s*::=) | (?P<name>[\w-]+) | (?P<times>\{{[\d,\s]*\}}) | \s*(?P<bar>\|) | (?P<space>\s+)
    | (?P<other>.)
    """,
    re.DOTALL | re.VERBOSE,
)
CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
REPEATING = frozenset("*+?")


def to_lark(text: str) -> str:
    """The same grammar in Lark's notation, which it may have already. Raises ValueError."""
    if LARK.search(text):
        return text
    try:
        return gbnf_to_lark(_plain(text))
    except Exception as error:  # which it raises itself
        raise ValueError(str(error)) from error


def _plain(text: str) -> str:
    """The same grammar without what is converted wrongly."""
    text = "".join(token.group() for token in TOKEN.finditer(text) if token.lastgroup != "comment")
    tokens = list(TOKEN.finditer(text))
    names: dict[str, str] = {ROOT: ROOT}
    for token in tokens:
        if token.lastgroup == "defined" and token.group() not in names:
            names[token.group()] = f"{re.sub('[^a-z0-9]', '_', token.group().lower())}_{len(names)}"
    written, is_repeated = [], False  # the part before
    for token in tokens:
        kind, part = token.lastgroup, token.group()
        if kind == "literal":
            part = f'"{"".join(map(_escaped, _characters(part[1:-1])))}"'
        elif kind == "characters":
            part = _class(part[1:-1])
        elif kind in ("defined", "name"):
            part = names.get(part, part)
        elif kind == "bar":
            part = " |"
        elif part == ")" and is_repeated:
            part = ' "")'  # a group of one part would lose its parentheses
        written.append(part)
        if kind != "space":
            is_repeated = kind == "times" or part in REPEATING
    return "".join(written)


def _characters(text: str) -> Iterator[str]:
    """The characters that a text with escapes stands for."""
    for each in CHARACTER.findall(text):
        if len(each) == 1:
            yield each
        elif each[1] in "xuU":
            yield chr(int(each[2:], 16))
        else:
            yield CONTROLS.get(each[1], each[1])


def _class(text: str) -> str:
    """The class of characters of a text between brackets."""
    is_negated = text.startswith("^")
    is_hyphen = [each == "-" for each in CHARACTER.findall(text[is_negated:])]
    characters = list(_characters(text[is_negated:]))
    written, i = ["[^" if is_negated else "["], 0
    while i < len(characters):
        written.append(_hex(characters[i]))
        if i + 2 < len(characters) and is_hyphen[i + 1]:
            written.append(f"-{_hex(characters[i + 2])}")
            i += 2
        i += 1
    return "".join([*written, "]"])


def _hex(character: str) -> str:
    """A character in a class, escaped if it might mean something else there."""
    return character if character.isalnum() else f"\\x{ord(character):02x}" if character < "\x7f" else character


def _escaped(character: str) -> str:
    """A character in a literal."""
    if character in '"\\':
        return f"\\{character}"
    return f"\\x{ord(character):02x}" if character < " " else character
