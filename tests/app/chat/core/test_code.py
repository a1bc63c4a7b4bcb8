"""Code is told from prose."""

from __future__ import annotations

import pytest

from outrider.app.chat.core.code import code_start, is_python


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("def f(x):\n    return x\n", True),
        ("def f(x):\n    retur", True),
        ("@cache\ndef f(x):\n    return x", True),
        ("async def f(): ...", True),
        ("class A:\n    x = 1", True),
        ("import os", True),
        ("x = 1\ny = 2", True),
        ("for x in y:\n    pass", True),
        ("Hello", False),
        ("Here is the function that you asked for.", False),
        ("define the terms first.", False),
        ("classes are described below.", False),
        ("important: do this.", False),
        ("from here on, it gets easier.", False),
        ("1. First\n2. Second", False),
        ("Answer: 42", False),
        ("答案: 巴黎", False),
        ("Name: Ada\nAge: 36", False),
        ("Result = 12", False),
        ("x: int = 1", True),
        ("if x: y()", True),
    ],
)
def test_code_is_told_from_prose(text: str, python: bool) -> None:
    assert is_python(text) == python


def test_code_begins_at_the_first_line_that_starts_like_a_definition() -> None:
    assert code_start("Rename it:\ndef f(x):\n    return x") == len("Rename it:\n")
    assert code_start("import os") is None, "a single line may be prose"
    assert code_start("Rename it.") is None
