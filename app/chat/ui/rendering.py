"""Turns as HTML. All text of a person or a model is escaped, or rendered by `markdown`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType

from outrider.pipelines import Span

from ...reasoning import CLOSE, ReasoningParser
from ..assistant import State
from ..core.code import code_start, is_python
from ..core.conversation import CANCELLED, File, Turn
from ..core.prefill_progress import PrefillProgress
from ..core.receipt import Receipt
from ..core.user_message import UserMessage
from ..i18n.translations import IN_ENGLISH, Words
from ..store.history import Node
from .markdown import code_html, markdown_html, verbatim

SOURCES = (
    "target", "prompt_lookup", "suffix", "recycling", "earlier_turn", "reference", "draft_model", "head",
    "layer_skipping", "early_exit", "grammar",
)  # fmt: skip
DRAFTERS = {
    "lookup": "prompt_lookup", "suffix": "suffix", "recycling": "recycling", "draft": "draft_model", "head": "head",
    "skip": "layer_skipping", "exit": "early_exit",
}  # fmt: skip
LEAST_TOLD_MS = 0.5  # less would be shown as 0 ms

_FENCE = re.compile(r"^```[^\n`]*\n(.*?)(?:^```[ \t]*$\n?|\Z)", re.MULTILINE | re.DOTALL)


def chat_messages(
    nodes: Iterable[Node], coloured: bool, words: Words = IN_ENGLISH, notes: Mapping[int, str] = MappingProxyType({})
) -> list[dict[str, str]]:
    """The value of `gr.Chatbot`: a message for each prompt, and one for each answer with its figures.

    `notes` are lines of HTML to show under answers, by the ids of their nodes.
    """
    result = []
    for node in nodes:
        prompt = prompt_html(node.turn.prompt) + files_html(node.turn.files, words)
        result.append({"role": "user", "content": prompt + prompt_buttons_html(node, words)})
        result.append({"role": "assistant", "content": answer_content(node, coloured, words, notes.get(node.id))})
    return result


def answer_content(node: Node, coloured: bool, words: Words = IN_ENGLISH, note: str | None = None) -> str:
    """An answer, coloured by the sources of its tokens or as Markdown, and the lines under it."""
    turn = node.turn
    if not turn.complete and not turn.spans:
        dots = "<span>.</span><span>.</span><span>.</span>"
        return f'<div class="waiting" role="status">{note or words("thinking")}{dots}</div>'
    body = coloured_html(turn.spans) if coloured else answer_html(turn.text, words)
    if not turn.complete:
        return body
    line = f'<p class="receipt" role="status">{note}</p>' if note else receipt_html(turn.receipt, words)
    return f"{body}{figures_html(turn, words)}{line}{answer_buttons_html(node, words)}"


def prompt_buttons_html(node: Node, words: Words) -> str:
    """The buttons under a prompt: to change between its branches if there are several, edit and copy."""
    if not node.turn.complete:
        return ""
    place, count = node.siblings.index(node.id) + 1 if node.siblings else 1, len(node.siblings)
    branches = ""
    if count > 1:
        back, on = button_html("back", node, words), button_html("on", node, words)
        branches = f'<span class="branches">{back}<span>{place}/{count}</span>{on}</span>'
    row = branches + button_html("edit", node, words) + button_html("copy", node, words, "copy_prompt")
    return f'<div class="message-button-row">{row}</div>'


def answer_buttons_html(node: Node, words: Words) -> str:
    receipt = button_html("receipt", node, words) if node.turn.token_ids else ""
    return f'<div class="message-button-row">{button_html("copy", node, words, "copy_answer")}{receipt}</div>'


def button_html(label: str, node: Node, words: Words, action: str | None = None) -> str:
    """A button that `message_buttons` recognizes by its classes, since the chatbot strips other attributes."""
    action = action or label
    hint = escape(words(f"{action}_hint"))
    classes = f"message-button action-{action} turn-{node.id}"
    return f'<button type="button" class="{classes}" title="{hint}">{words(label)}</button>'


def coloured_html(spans: Iterable[Span]) -> str:
    """The text with each span marked by its source. White space is kept; line ends and indents are not marked."""
    html = []
    in_indent = True
    for span in spans:
        for part in re.split(r"(\n[ \t]*)", span.text):
            indent = part[: len(part) - len(part.lstrip(" \t\n"))] if in_indent or part.startswith("\n") else ""
            html.append(verbatim(indent))
            if part != indent:
                html.append(f'<span class="from-{escape(span.source)}">{verbatim(part[len(indent) :])}</span>')
            in_indent = part == indent if part else in_indent
    return f'<pre class="answer">{"".join(html)}</pre>'


def answer_html(text: str, words: Words = IN_ENGLISH) -> str:
    """The answer as Markdown, with the reasoning before it folded. Python code without a fence becomes a highlighted
    code block."""
    split = ReasoningParser().parse(text, is_last=True)
    if not split.reasoning:
        return _answer_html(split.text)
    thoughts = f"<summary>{words('reasoning')}</summary>{markdown_html(split.reasoning)}"
    answer = _answer_html(split.text) if split.text else ""
    grows = "" if CLOSE in text else " open"  # or it would shut with each piece of what someone reads
    return f'<details class="thoughts"{grows}>{thoughts}</details>{answer}'


def _answer_html(text: str) -> str:
    if "```" in text or not is_python(text):
        return markdown_html(text)
    return f'<div class="answer-text">{code_html(text.strip(chr(10)), "python")}</div>'


def prompt_html(prompt: str) -> str:
    """A prompt as it was typed. Fenced code, or else code from `code_start` on, is in blocks."""
    parts = _FENCE.split(prompt)
    if len(parts) == 1 and (start := code_start(prompt)) is not None:
        parts = [prompt[:start], prompt[start:]]
    said = ('<p class="said">', "</p>", str.strip)
    code = ('<pre class="code">', "</pre>", str.rstrip)
    html = []
    for at, part in enumerate(parts):
        opening, closing, trimmed = code if at % 2 else said
        if part.strip():
            html.append(f"{opening}{verbatim(trimmed(part))}{closing}")
    return "".join(html)


def figures_html(turn: Turn, words: Words = IN_ENGLISH) -> str:
    """The line under an answer: tokens, speed, passes, accepted tokens, and time saved."""
    figures = [f"<span>{figure}</span>" for figure in figures_of(turn, words)]
    if turn.time_saved is not None and turn.time_saved.took_ms and turn.time_saved.is_certain:
        parts = ", ".join(
            f"{words(f'from_{source}')} {saved_phrase(ms, words)}"
            for source, ms in turn.time_saved.by_drafter.items()
            if source in SOURCES
        )
        hint = words("saved_hint", plain=duration(turn.time_saved.plain_ms / 1e3), parts=parts)
        figures.append(f'<span class="saved" title="{hint}">{saved_phrase(turn.time_saved.total_ms, words)}</span>')
    if turn.finish_reason == "length":
        figures.append(f'<span class="note">{words("looped" if turn.is_looping else "cut")}</span>')
    if turn.finish_reason == CANCELLED:
        figures.append(f'<span class="note">{words("stopped")}</span>')
    return f'<div class="figures">{"".join(figures)}</div>'


def figures_of(turn: Turn, words: Words = IN_ENGLISH) -> list[str]:
    """The mode, whether drafts could change the answer, the seed of a sampled one, and the statistics, as phrases."""
    figures = [words(f"mode_{turn.settings.mode}")]
    if turn.settings.lossy:
        figures.append(words("lossy", rule=words(f"acceptance_{turn.settings.acceptance}")))
    if turn.settings.temperature > 0:
        figures.append(words("seed", seed=turn.settings.seed))
    stats = turn.stats
    if stats is None:
        return figures
    figures.append(words.count(stats.new_tokens, "token", "tokens"))
    if stats.tokens_per_s is not None:
        figures.append(words("speed", rate=f"{stats.tokens_per_s:,.{0 if stats.tokens_per_s >= 10 else 1}f}"))
    figures.append(words.count(stats.passes, "pass", "passes"))
    accepted, drafted = f"{stats.accepted:,}", f"{stats.drafted:,}"
    if stats.drafted:
        figures.append(words("accepted", accepted=accepted, drafted=drafted))
    else:  # OpenVINO GenAI does not tell how many it rejected
        figures.append(words("accepted_alone", accepted=accepted) if stats.accepted else words("undrafted"))
    return figures


def legend_html(modes: Iterable[str], words: Words = IN_ENGLISH, turns: Iterable[Turn] = ()) -> str:
    """The colours of the sources that these modes can have, and the time that each saved in these turns."""
    times_saved = [turn.time_saved for turn in turns if turn.time_saved is not None]
    saved: dict[str, float] = {}
    for time_saved in times_saved:
        for source, ms in time_saved.by_drafter.items() if time_saved.is_certain else ():
            saved[source] = saved.get(source, 0.0) + ms
    sources = ["target", *(source for mode, source in DRAFTERS.items() if mode in modes)]
    drafted = {source for time_saved in times_saved for source in time_saved.took_ms}
    sources += sorted(source for source in drafted if source in SOURCES and source not in sources)
    marks = []
    for source in sources:
        mark = f'<span class="from-{source}" title="{words(f"from_{source}_hint")}">{words(f"from_{source}")}</span>'
        ms = saved.get(source, 0.0)
        note = f"<small>{saved_phrase(ms, words)}</small>" if abs(ms) >= LEAST_TOLD_MS else ""
        marks.append(f"<div>{mark}{note}</div>")
    return f"{words('tokens_from')} {''.join(marks)}"


def saved_phrase(ms: float, words: Words) -> str:
    return words("saved" if ms >= 0 else "lost", time=duration(abs(ms) / 1e3))


def speedup(ratio: float, words: Words) -> str:
    """A phrase for `ratio`, the plain time divided by the drafted time. Differences below 5% are not shown."""
    if 0.95 < ratio < 1.05:
        return words("as_fast")
    return words("faster", ratio=f"{ratio:.1f}") if ratio > 1 else words("slower", ratio=f"{1 / ratio:.1f}")


def duration(seconds: float) -> str:
    """In milliseconds below one second, else in seconds."""
    return f"{1e3 * seconds:,.0f} ms" if seconds < 0.9995 else f"{seconds:,.{2 if seconds < 2 else 1}f} s"


def receipt_html(receipt: Receipt | None, words: Words = IN_ENGLISH) -> str:
    """The result of the replay of an answer."""
    if receipt is None:
        return ""
    if receipt.differs_at is None:
        line = words("identical", count=f"{receipt.num_tokens:,}")
    else:
        line = words("differs", place=f"{receipt.differs_at + 1:,}")
    if receipt.ratio is not None:
        plain, drafted = duration(receipt.plain_s), duration(receipt.drafted_s)
        line += " " + words("times", plain=plain, drafted=drafted, ratio=speedup(receipt.ratio, words))
    sort = "same" if receipt.differs_at is None else "other"
    return f'<p class="receipt {sort}">{line}</p>'


def prefill_html(prefill: PrefillProgress, words: Words = IN_ENGLISH) -> str:
    """The progress of the prefill, with a bar once it is above zero."""
    total = f"{prefill.total:,}"
    if not prefill.read:
        return words("prefill", count=total)
    line = words("prefill_progress", read=f"{prefill.read:,}", count=total, share=f"{prefill.read / prefill.total:.0%}")
    return f'<progress class="reading" max="{prefill.total}" value="{prefill.read}"></progress>{line}'


def files_html(files: Sequence[File], words: Words = IN_ENGLISH) -> str:
    """The names and sizes of attached files."""
    names = (escape(words("attached", name=file.name, size=f"{len(file.text):,}")) for file in files)
    return f'<p class="files">{"".join(f"<span>{name}</span>" for name in names)}</p>' if files else ""


def meter_html(used: int | None, context: int, words: Words = IN_ENGLISH) -> str:
    """How much of the context a conversation takes. `used` is None if it is unknown."""
    if used is None:
        return f"<span>{words('context_unknown', all=f'{context:,}')}</span>"
    line = words("context", used=f"{used:,}", all=f"{context:,}")
    return f'<meter min="0" max="{context}" high="{context * 0.8:.0f}" value="{used}">{line}</meter><span>{line}</span>'


def words_html(words: Words) -> str:
    """For page.js: the language, and labels for screen readers."""
    names = {name: name for name in ("chats", "settings", "examples", "copied", "close", "retry", "undo", "down")}
    names |= {"log": "tab_chat", "user": "prompt", "bot": "answer"}
    said = "".join(f' data-{name}="{escape(words(key))}"' for name, key in names.items())
    return f'<p hidden data-lang="{words.language}"{said}></p>'


def notice_html(notice: UserMessage | None, words: Words = IN_ENGLISH) -> str:
    """What was wrong with the history file, if anything was."""
    return f'<p role="alert">{escape(words.error(notice))}</p>' if notice else ""


def status_html(name: str, state: State, words: Words = IN_ENGLISH) -> str:
    """The model's name and whether it is ready."""
    values = {n: words.error(value) if isinstance(value, UserMessage) else value for n, value in state.values.items()}
    line = escape(words(state.line, **values))
    if state.name == "warming":
        line += " " + words("seconds", seconds=f"{time.monotonic() - state.began:.0f}")
    return f'<div class="{state.name}" role="status"><i></i><b>{escape(name)}</b> {line}</div>'
