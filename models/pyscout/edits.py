"""Exact edits of one Python function, which the tasks ask for: the reference that answers are compared with."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Docstring:
    """Where a function's docstring stands: `lines[first:last]` of the source."""

    first: int
    last: int


def rename(source: str, old: str, new: str) -> str:
    """`source` with the variable, argument or function `old` called `new`; attributes and keywords are left alone.

    Raises ValueError if `new` is in use or if the outcome is a matter of taste: `old` inside a string or a comment,
    or a name that a global, import or nested definition binds too.
    """
    if re.search(rf"\b{re.escape(new)}\b", source):
        raise ValueError(f"{new!r} is in use")
    spots = _occurrences(source, old)
    lines = source.split("\n")
    for row, column in sorted(spots, reverse=True):
        lines[row] = lines[row][:column] + new + lines[row][column + len(old) :]
    return "\n".join(lines)


def renamable(source: str) -> list[str]:
    """The identifiers of a function that `rename` accepts, in order of appearance: its own name, arguments, locals."""
    function = ast.parse(source).body[0]
    names = [function.name] if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
    accepted = []
    for name in dict.fromkeys(names):
        if name in ("self", "cls", "_") or (name.startswith("__") and name.endswith("__")):
            continue
        try:
            _occurrences(source, name)
        except ValueError:
            continue
        accepted.append(name)
    return accepted


def docstring(source: str) -> Docstring | None:
    """The docstring's place, or None if there is none, it shares a line with code, or nothing else is in the body."""
    function = ast.parse(source).body[0]
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or ast.get_docstring(function) is None:
        return None
    node = function.body[0]
    if len(function.body) < 2 or function.body[1].lineno == node.end_lineno or node.end_lineno is None:
        return None
    lines = source.split("\n")
    if not re.match(r"\s*[rRuU]?['\"]", lines[node.lineno - 1]) or not lines[node.end_lineno - 1].endswith(("'", '"')):
        return None
    return Docstring(node.lineno - 1, node.end_lineno)


def without_docstring(source: str) -> str:
    """`source` without its docstring and the blank lines after it. Raises ValueError if it has none to remove."""
    place = docstring(source)
    if place is None:
        raise ValueError("no docstring that can be removed")
    lines = source.split("\n")
    rest = lines[place.last :]
    while rest and not rest[0].strip():
        rest = rest[1:]
    return "\n".join(lines[: place.first] + rest)


def header(source: str) -> str:
    """The signature and docstring of a function. Raises ValueError if it has no docstring."""
    place = docstring(source)
    if place is None:
        raise ValueError("no docstring")
    return "\n".join(source.split("\n")[: place.last])


def _occurrences(source: str, name: str) -> list[tuple[int, int]]:
    """(row, column) of every place where `name` is a name, not an attribute, keyword or text."""
    if not source.isascii():
        raise ValueError("columns of non-ASCII sources are not supported")
    function = ast.parse(source).body[0]
    lines = source.split("\n")
    spots = set()
    other = 0  # occurrences that are attributes or keyword names, and stay
    for node in ast.walk(function):
        if isinstance(node, ast.JoinedStr) and any(_mentions(n, name) for n in ast.walk(node)):
            raise ValueError(f"{name!r} is in an f-string")
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            raise ValueError(f"{name!r} is not local")
        if isinstance(node, ast.alias) and name in (node.name, node.asname):
            raise ValueError(f"{name!r} is imported")
        if isinstance(node, ast.ExceptHandler) and node.name == name:
            raise ValueError(f"{name!r} is bound by an except clause")
        if isinstance(node, (ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
            raise ValueError("match statements are not supported")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
            if node is not function:
                raise ValueError(f"{name!r} is a nested definition")
            spots.add((0, lines[0].index(name, lines[0].index("def ") + 4)))
        elif isinstance(node, (ast.Name, ast.arg)) and name in (getattr(node, "id", None), getattr(node, "arg", None)):
            spots.add((node.lineno - 1, node.col_offset))
        elif (isinstance(node, ast.Attribute) and node.attr == name) or (
            isinstance(node, ast.keyword) and node.arg == name
        ):
            other += 1
    if len(re.findall(rf"\b{re.escape(name)}\b", source)) != len(spots) + other:
        raise ValueError(f"{name!r} occurs in a string or a comment")
    return sorted(spots)


def _mentions(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
