"""Turns as the HTML and Markdown that the chat shows. Everything a person or a model wrote is escaped."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from html import escape

from outrider.pipelines import Span

from .assistant import State
from .conversation import Turn

SOURCES = {
    "target": "Written by the model itself",
    "prompt_lookup": "Found in the prompt or the answer so far, and confirmed by the model",
    "suffix": "Copied from the text so far, edits included, and confirmed by the model",
    "reference": "Found in the reference folder, and confirmed by the model",
    "draft_model": "Proposed by the draft model, and confirmed by the model",
}
LABELS = {
    "target": "the model", "prompt_lookup": "prompt lookup", "suffix": "text index", "reference": "your files",
    "draft_model": "draft model",
}  # fmt: skip
DRAFTERS = {"lookup": "prompt_lookup", "suffix": "suffix", "draft": "draft_model"}
MODES = {
    "auto": "Automatic", "off": "Plain", "lookup": "Prompt lookup", "suffix": "Text index", "draft": "Draft model",
    "chained": "Chained",
}  # fmt: skip

_FENCE = re.compile(r"^```[^\n`]*\n(.*?)(?:^```[ \t]*$\n?|\Z)", re.MULTILINE | re.DOTALL)
_CODE_START = re.compile(
    r"^(?:(?:async )?def \w+ *\(|class \w+ *[:(]|@\w[\w.]*(?:\(.*\))?$|import [\w., ]+$|from [\w.]+ import )",
    re.MULTILINE,
)


def chat_messages(conversation: Iterable[Turn], coloured: bool) -> list[dict[str, str]]:
    """What `gr.Chatbot` shows: a message for each prompt and one for each answer with its figures."""
    result = []
    for turn in conversation:
        result.append({"role": "user", "content": prompt_html(turn.prompt)})
        result.append({"role": "assistant", "content": answer_content(turn, coloured)})
    return result


def answer_content(turn: Turn, coloured: bool) -> str:
    """An answer, coloured by where its tokens came from or as Markdown, and the line of figures under it."""
    if not turn.complete and not turn.spans:
        return '<div class="waiting" role="status">Thinking<span>.</span><span>.</span><span>.</span></div>'
    body = coloured_html(turn.spans) if coloured else answer_markdown(turn.text)
    return f"{body}\n\n{figures_html(turn)}" if turn.complete else body


def coloured_html(spans: Iterable[Span]) -> str:
    """The answer's text, white space kept, each span marked with its source; line ends and indents stay unmarked."""
    html = []
    in_indent = True
    for span in spans:
        for part in re.split(r"(\n[ \t]*)", span.text):
            indent = part[: len(part) - len(part.lstrip(" \t\n"))] if in_indent or part.startswith("\n") else ""
            html.append(_verbatim(indent))
            if part != indent:
                html.append(f'<span class="from-{span.source}">{_verbatim(part[len(indent):])}</span>')
            in_indent = part == indent if part else in_indent
    return f'<pre class="answer">{"".join(html)}</pre>'


def answer_markdown(text: str) -> str:
    """The answer as Markdown; bare Python becomes a code block, so that it is highlighted and can be copied."""
    if "```" in text or not is_python(text):
        return text
    return f"```python\n{text.strip(chr(10))}\n```"


def is_python(text: str) -> bool:
    """Whether a text is Python code rather than prose. One that breaks off counts by how it begins."""
    if _CODE_START.match(text.lstrip()):
        return True
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    return any(not isinstance(node, ast.Expr) for node in body)


def prompt_html(prompt: str) -> str:
    """A prompt as it was typed, its code (fenced, or from the first line that starts like a definition) set apart."""
    parts = _FENCE.split(prompt)
    if len(parts) == 1 and (found := _CODE_START.search(prompt)) and "\n" in prompt[found.start() :]:
        parts = [prompt[: found.start()], prompt[found.start() :]]
    said = ('<p class="said">', "</p>", str.strip)
    code = ('<pre class="code">', "</pre>", str.rstrip)
    html = []
    for at, part in enumerate(parts):
        opening, closing, trimmed = code if at % 2 else said
        if part.strip():
            html.append(f"{opening}{_verbatim(trimmed(part))}{closing}")
    return "".join(html)


def figures_html(turn: Turn) -> str:
    """The line under an answer: tokens, speed, passes, and how many of the drafted tokens stood."""
    figures = [f"<span>{figure}</span>" for figure in figures_of(turn)]
    if turn.finish_reason == "length":
        figures.append('<span class="note">cut at the length limit</span>')
    if turn.finish_reason == "cancelled":
        figures.append('<span class="note">stopped</span>')
    return f'<div class="figures">{"".join(figures)}</div>'


def figures_of(turn: Turn) -> list[str]:
    """The settings that matter and the figures of one answer, as phrases."""
    figures = [MODES[turn.settings.mode]]
    if turn.settings.temperature > 0:
        figures.append(f"seed {turn.settings.seed}")
    stats = turn.stats
    if stats is None:
        return figures
    figures.append(_count(stats.new_tokens, "token"))
    if stats.tokens_per_s is not None:
        figures.append(f"{stats.tokens_per_s:,.{0 if stats.tokens_per_s >= 10 else 1}f} tokens/s")
    figures.append(_count(stats.passes, "pass", "passes"))
    figures.append(f"{stats.accepted:,} of {stats.drafted:,} drafted accepted" if stats.drafted else "nothing drafted")
    return figures


def legend_html(modes: Iterable[str]) -> str:
    """What the colours mean, for the sources that these modes can have."""
    sources = ["target", *(source for mode, source in DRAFTERS.items() if mode in modes)]
    marks = (f'<span class="from-{source}" title="{SOURCES[source]}">{LABELS[source]}</span>' for source in sources)
    return f"Tokens from {''.join(marks)}"


def status_html(name: str, state: State) -> str:
    """The model's name and whether it is ready."""
    return f'<div class="{state.name}" role="status"><i></i><b>{escape(name)}</b> {escape(state.line)}</div>'


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _verbatim(text: str) -> str:
    """Escaped for HTML inside Markdown: a blank line would end the HTML block, so line ends are spelled out."""
    return escape(text).replace("\n", "&#10;")
