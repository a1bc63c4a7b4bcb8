"""How much work a hostile answer can make: parsing and highlighting are bounded, and done once for the same text."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from outrider.app.chat.ui import markdown
from outrider.app.chat.ui.markdown import LARGEST, LARGEST_COLOURED, markdown_html

fresh = count()  # in each text, which no other test has rendered then


@pytest.fixture
def lexed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of what was highlighted."""
    lengths: list[int] = []
    highlight = markdown.highlight

    def counted(code: str, *arguments: Any) -> Any:
        lengths.append(len(code))
        return highlight(code, *arguments)

    monkeypatch.setattr(markdown, "highlight", counted)
    return lengths


def fenced(language: str, code: str) -> str:
    return f"```{language}\n{code}\n```\n"


@pytest.mark.parametrize("language", LARGEST_COLOURED)
def test_long_code_passes_the_lexer_by(lexed: list[int], language: str) -> None:
    largest = LARGEST_COLOURED[language]
    start = f"{next(fresh)} "
    shown = markdown_html(fenced(language, start + "a" * (largest - len(start))))
    assert 'class="language-' in shown
    assert lexed == [largest]
    plain = markdown_html(fenced(language, start + "a" * (largest - len(start) + 1)))
    assert 'class="language-' not in plain
    assert "a" * 1000 in plain
    assert lexed == [largest]


@pytest.mark.parametrize("language", ["java", "c", "cpp", "typescript", "ts", "diff"])
def test_lexers_that_slow_down_most_get_the_least(language: str) -> None:
    assert LARGEST_COLOURED[language] <= 2_000


@pytest.mark.parametrize("language", ["cs", "perl", "mermaid", "html+erb", ""])
def test_other_languages_are_not_highlighted(lexed: list[int], language: str) -> None:
    assert "a = 1" in markdown_html(fenced(language, "a = 1"))
    assert lexed == []


@pytest.mark.parametrize(("language", "last"), [("bash", "# why"), ("diff", "+new"), ("rust", "// why")])
def test_the_last_line_of_code_is_highlighted_as_those_before_it(language: str, last: str) -> None:
    first, second = markdown.code_html(f"{last}\n{last}", language).split("&#10;")
    assert first.endswith(f"{last}</span>")
    assert second.endswith(f"{last}</span></code></pre>")


def test_a_growing_answer_has_each_block_highlighted_once(lexed: list[int]) -> None:
    answer = fenced("java", f"int a{next(fresh)};" * 20)
    markdown_html(answer)
    done = len(lexed)
    for word in "that is all there is to say".split():  # noqa: SIM905
        markdown_html(answer := f"{answer}{word} ")
    assert len(lexed) == done == 1


@pytest.mark.parametrize("part", ["![", "[", "|a|\n|-|\n", "**a "])
def test_a_long_answer_passes_the_parser_by(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    parsed: list[int] = []
    render = markdown._MARKDOWN.render
    monkeypatch.setattr(markdown._MARKDOWN, "render", lambda text: parsed.append(len(text)) or render(text))
    text = part * (20_000 // len(part))
    markdown_html(text)
    assert parsed == [len(text)]
    assert LARGEST == 20_000
    assert markdown.verbatim(part) in markdown_html(text + part * 2)
    assert parsed == [len(text)]
