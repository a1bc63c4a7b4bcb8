"""Prompts to begin with, chosen for the pair that comes with Outrider: an assistant that edits Python functions."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    """What the card says, and the prompt that it sends."""

    title: str
    prompt: str


_CLAMP = '''def clamp(value, low, high):
    """Return value limited to the range from low to high."""
    if low > high:
        raise ValueError("low must not exceed high")
    return max(low, min(value, high))'''

_CHUNKS = """def chunks(items, size):
    result = []
    for start in range(0, len(items), size):
        result.append(items[start:start + size])
    return result"""

EXAMPLES = (
    Example("Rename a variable", f"Rename `result` to `pieces`:\n{_CHUNKS}"),
    Example("Add a docstring", f"Add a docstring:\n{_CHUNKS}"),
    Example("Remove the docstring", f"Remove the docstring:\n{_CLAMP}"),
    Example("Repeat the code", f"Repeat this function:\n{_CLAMP}"),
    Example("Complete a function", 'Complete this function:\ndef read_lines(path, encoding="utf-8"):\n    lines = []'),
    Example(
        "Write from a signature",
        'Write this function:\ndef is_empty(value):\n    """Return True if value is None or has no elements."""',
    ),
)
