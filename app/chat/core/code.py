"""Telling Python code from prose."""

from __future__ import annotations

import ast
import re

_START = re.compile(
    r"^(?:(?:async )?def \w+ *\(|class \w+ *[:(]|@\w[\w.]*(?:\(.*\))?$|import [\w., ]+$|from [\w.]+ import )",
    re.MULTILINE,
)


def is_python(text: str) -> bool:
    """Whether a text is Python code rather than prose. If it is cut off, its beginning decides."""
    if _START.match(text.lstrip()):
        return True
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two for deeply nested brackets
        return False
    is_line = "\n" not in text.strip()
    return any(not _may_be_prose(node, is_line) for node in body)


def _may_be_prose(node: ast.stmt, is_line: bool) -> bool:
    """Whether people write like that as well: "Answer: 42", and if it is the only line, "Result = 12"."""
    is_annotation = isinstance(node, ast.AnnAssign) and node.value is None
    return is_annotation or isinstance(node, ast.Expr) or (is_line and isinstance(node, ast.Assign))


def code_start(text: str) -> int | None:
    """The index at which code begins: the first line that starts like a definition, if more lines follow it."""
    found = _START.search(text)
    return found.start() if found and "\n" in text[found.start() :] else None
