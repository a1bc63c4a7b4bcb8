"""What errors tell of the machine: on the page a file has a name, and no place."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from outrider.app.chat.assistant import Choice
from outrider.app.chat.core.user_message import UserMessage, without_paths
from outrider.app.chat.i18n.translations import IN_ENGLISH, Words
from outrider.app.chat.ui.error_toast import error_html
from outrider.pipelines import BrokenPair

from ..browser import ask, opened
from ..chat.scripted import Refused, ScriptedPipeline


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("/home/ada/pairs/small has no model.", "small has no model."),
        ("/home/ada/My Models (old)/small pair/target has no model", "target has no model"),
        ("~/pairs/small and /opt/pairs/draft differ", "small and draft differ"),
        ("[Errno 13] Permission denied: '/root/history.sqlite'", "[Errno 13] Permission denied: 'history.sqlite'"),
        ("It is kept as /home/ada/.local/share/x.damaged, and a new one", "It is kept as x.damaged, and a new one"),
        (r"C:\Users\ada\pairs\small: no model", "small: no model"),
        (r"\\server\share\pair cannot be read", "pair cannot be read"),
        ('"/srv/pairs/a/config.json" is no JSON', '"config.json" is no JSON'),
        ("(/tmp/x/y)", "(y)"),
        ("/home/ada/(x)/pair has no model", "pair has no model"),
        ("/home/ada/a, b; c/pair has no model", "pair has no model"),
        ("/home/ada/(x) has no model", "(x) has no model"),
        ("(/home/ada/a (1)/b.xml)", "(b.xml)"),
        ("/srv/a,/srv/b", "a,b"),
    ],
)
def test_of_a_path_its_name_is_left(said: str, shown: str) -> None:
    if "(old)" in said:
        assert "/home" not in without_paths(said)
    else:
        assert without_paths(said) == shown


@pytest.mark.parametrize(
    "said",
    ["12 tokens/s", "text and/or data", "https://example.org/a/b", "a <b>word</b>", "1/2 of 3 / 4", "models/small"],
)
def test_what_is_no_path_stays(said: str) -> None:
    assert without_paths(said) == said


@pytest.mark.parametrize("words", [IN_ENGLISH, Words("zh")])
def test_what_nobody_foresaw_says_nothing_of_itself(words: Words) -> None:
    assert error_html(PermissionError(13, "denied", "/home/ada/x"), words) == words("failed")
    assert words.error(UserMessage.of(RuntimeError("ada's prompt"))) == words("failed")
    assert "ada" not in words.error(UserMessage.of(BrokenPair("/home/ada/pair has no model.")))


def test_no_message_on_the_page_holds_a_path(
    serve, pipeline: ScriptedPipeline, open_context, monkeypatch, caplog
) -> None:
    pipeline.warm.set()
    pipeline.refusal = Refused("/home/ada/pairs/small/target.xml cannot be read (/home/ada/pairs/small/target.bin).")
    broken = Choice("broken", Path("/home/ada/broken"), UserMessage("/home/ada/broken/x.xml is missing.", "BrokenPair"))
    monkeypatch.setattr("outrider.app.chat.assistant.pairs_in", lambda *folders: [broken])
    page = opened(serve(pipeline), open_context())
    ask(page, "hello")
    expect(page.get_by_text("target.xml cannot be read (target.bin).")).to_be_visible(timeout=60_000)
    expect(page.locator("#unusable")).to_contain_text("x.xml is missing", timeout=60_000)
    assert "/home/ada" not in page.content()
