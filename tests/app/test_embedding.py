"""The page on embedding: its code runs, and does what the page says of it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from outrider import app

PAGE = Path(next(iter(app.__path__))) / "EMBEDDING.md"


@pytest.fixture(scope="module")
def names(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page's code has defined when all of it has run, next to a folder my-pair."""
    folder = tmp_path_factory.mktemp("embedding")
    shutil.copytree(embedded_pair, folder / "my-pair")
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for block in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
            line = text.count("\n", 0, block.start()) + 1
            exec(compile("\n" * line + block[1], str(PAGE), "exec"), names)
    finally:
        os.chdir(before)
    return names


def test_a_stream_that_is_advanced_tells_how_much_of_its_prompt_is_read(names: dict[str, Any]) -> None:
    assert names["piece"].finish_reason
    length = names["pieces"].stats.prompt_tokens
    assert names["progress"] == f"{length} of {length}"
    assert names["pieces"].trace == names["pieces"].finish().trace


def test_threads_get_the_answers_that_each_prompt_has_alone(names: dict[str, Any]) -> None:
    assert names["together"] == [names["answer"](prompt) for prompt in names["prompts"]]
    assert names["together"][0].startswith("def area(w, h):")
    assert names["shown"] == names["served"] == names["together"][0]
    assert names["conversation"][-1]["content"] == names["together"][0]


def test_a_cancelled_stream_has_one_more_piece_with_the_statistics(names: dict[str, Any]) -> None:
    assert [piece.finish_reason for piece in names["stopped"]] == [None, "cancelled"]
    assert names["stopped"][-1].stats is not None


def test_the_error_is_the_one_that_the_page_catches(names: dict[str, Any]) -> None:
    assert "shorten the prompt" in names["told"]
    assert not names["told"].startswith("something else")


def test_two_pipelines_of_one_pair_answer(names: dict[str, Any]) -> None:
    assert names["both"][0] == names["together"][0]
    assert names["both"][1].startswith("def area")
    assert names["second"].speculation.num_threads == 1


def test_the_figures_of_the_embedded_pair_are_right(names: dict[str, Any]) -> None:
    memory = names["memory"]
    assert f"{memory.cache / memory.cache_tokens / 1000:.1f} kB a token" in PAGE.read_text(encoding="utf-8")
    assert memory.cache_tokens == 4096


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(links) >= 2
    for link in links:
        assert (PAGE.parent / link).is_file(), link
