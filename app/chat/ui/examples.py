"""Example prompts for the pair that comes with Outrider, which edits Python functions."""

from __future__ import annotations

from typing import NamedTuple

from ..i18n.translations import IN_ENGLISH, Words


class Example(NamedTuple):
    """The key of a card's title, and the prompt that it sends."""

    key: str
    prompt: str

    @property
    def title(self) -> str:
        return IN_ENGLISH(self.key)


_CLAMP = '''def clamp(value, low, high):
    """Return value limited to the range from low to high."""
    if low > high:
        raise ValueError("low must not exceed high")
    return max(low, min(value, high))'''

_MOVING_AVERAGE = '''def moving_average(values, window):
    """Average each run of window neighbouring values."""
    averages = []
    for start in range(len(values) - window + 1):
        neighbours = values[start:start + window]
        averages.append(sum(neighbours) / window)
    return averages'''

_CHUNKS = """def chunks(items, size):
    result = []
    for start in range(0, len(items), size):
        result.append(items[start:start + size])
    return result"""

EXAMPLES = (
    Example("example_rename_variable", f"Rename `result` to `pieces`:\n{_CHUNKS}"),
    Example("example_rename_parameter", f"Rename `window` to `width`:\n{_MOVING_AVERAGE}"),
    Example("example_remove_docstring", f"Remove the docstring:\n{_MOVING_AVERAGE}"),
    Example("example_repeat_code", f"Repeat this function:\n{_CLAMP}"),
    Example(
        "example_complete_function",
        'Complete this function:\ndef read_lines(path, encoding="utf-8"):\n    lines = []',
    ),
    Example(
        "example_write_function",
        'Write this function:\ndef is_empty(value):\n    """Return True if value is None or has no elements."""',
    ),
)


def example_cards(words: Words = IN_ENGLISH) -> list[dict[str, str]]:
    """The value of `gr.Chatbot.examples`."""
    return [{"text": example.prompt, "display_text": words(example.key)} for example in EXAMPLES]
