"""Kept conversations, as someone sees them who uses the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from outrider.app.history import History

from ..scripted import BEGINNING, END, ScriptedPipeline
from .test_page import ask, eventually, opened

expect.set_options(timeout=60_000)


@pytest.fixture
def page(serve: Callable[..., str], pipeline: ScriptedPipeline, open_context: Callable[..., object]) -> Page:
    """The page in a wide window, where the list is open; answers come at once."""
    pipeline.warm.set()
    pipeline.gate.set()
    page = opened(serve(pipeline), open_context(viewport={"width": 1400, "height": 900}))
    expect(page.locator("#chats.open")).to_have_count(1)
    return page


def answered(page: Page, prompt: str, count: int = 1) -> None:
    ask(page, prompt)
    expect(page.locator("#chat .figures")).to_have_count(count)
    expect(page.locator("#send")).to_be_visible()


def listed(page: Page) -> object:
    return page.locator("#listing label")


def test_conversations_are_there_after_a_restart(page, serve, pipeline, open_context) -> None:
    answered(page, "Write area.")
    answered(page, "Now rename it.", 2)
    other = opened(serve(pipeline), open_context(viewport={"width": 1400, "height": 900}))  # on the same file
    expect(listed(other)).to_have_text(["Write area."])
    listed(other).click()
    expect(other.locator("#chat .said")).to_have_text(["Write area.", "Now rename it."])
    assert other.locator("#chat pre.answer").first.inner_text() == BEGINNING + END
    answered(other, "And again.", 3)
    assert [message["content"] for message in pipeline.requests[-1][0]][::2] == [
        "Write area.", "Now rename it.", "And again.",
    ]  # fmt: skip


def test_conversations_are_listed_searched_renamed_and_deleted(page) -> None:
    answered(page, "Write area.")
    page.locator("#new").click()
    expect(page.locator("#chat .user-row")).to_have_count(0)
    answered(page, "Write volume.")
    expect(listed(page)).to_have_text(["Write volume.", "Write area."])
    page.locator("#search input, #search textarea").fill("AREA.")
    expect(listed(page)).to_have_text(["Write area."])
    page.locator("#search input, #search textarea").fill("")
    expect(listed(page)).to_have_count(2)
    page.locator("#chat-title input, #chat-title textarea").fill("Boxes")
    page.get_by_role("button", name="Rename").click()
    expect(listed(page)).to_have_text(["Boxes", "Write area."])
    page.locator("#delete").click()
    page.locator("#sure").click()
    expect(listed(page)).to_have_text(["Write area."])
    expect(page.locator("#chat .user-row")).to_have_count(0)
    expect(page.locator("#delete")).to_be_visible()


def test_a_retry_is_a_branch_and_both_can_be_seen(page, pipeline) -> None:
    answered(page, "Write area.")
    page.locator("#mode").get_by_text("Plain").click()
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#chat .branches")).to_have_text("‹2/2›")
    expect(page.locator("#chat .figures")).to_contain_text("Plain")
    page.locator("#chat .act-back").click()
    expect(page.locator("#chat .branches")).to_have_text("‹1/2›")
    expect(page.locator("#chat .figures")).to_contain_text("Automatic")
    answered(page, "Now rename it.", 2)
    page.locator("#chat .act-on").click()
    expect(page.locator("#chat .figures")).to_have_count(1)
    page.locator("#chat .act-on").click()
    expect(page.locator("#chat .figures")).to_have_count(2)
    assert [message["content"] for message in pipeline.requests[-1][0]][::2] == ["Write area.", "Now rename it."]


def test_what_is_exported_can_be_imported(page, tmp_path: Path) -> None:
    answered(page, "Write area.")
    for button, name in (("Export JSON", "Write area.json"), ("Export Markdown", "Write area.md")):
        with page.expect_download() as download:
            page.get_by_role("button", name=button).click()
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
    assert json.loads((tmp_path / "Write area.json").read_text())["turns"][0]["prompt"] == "Write area."
    for count, name in enumerate(("Write area.json", "Write area.md"), 2):
        page.locator("#new").click()
        expect(page.locator("#chat .user-row")).to_have_count(0)
        page.locator("input[type=file]#import, #import input[type=file], input[type=file]").first.set_input_files(
            tmp_path / name
        )
        expect(page.locator("#chat .said")).to_have_text(["Write area."])
        expect(listed(page)).to_have_count(count)
        assert page.locator("#chat pre.answer").inner_text() == BEGINNING + END
    (tmp_path / "bad.json").write_text("{")
    page.locator("input[type=file]").first.set_input_files(tmp_path / "bad.json")
    expect(page.get_by_text("The file is no JSON")).to_be_visible()
    expect(listed(page)).to_have_count(3)


def test_a_damaged_file_is_set_aside_and_the_page_says_so_and_works(serve, pipeline, open_context, tmp_path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"damaged" * 1000)
    pipeline.warm.set()
    pipeline.gate.set()
    page = opened(serve(pipeline), open_context())
    expect(page.locator("#notice")).to_contain_text("The history file was damaged")
    (aside,) = tmp_path.glob("history.damaged-*.sqlite")
    expect(page.locator("#notice")).to_contain_text(str(aside))
    answered(page, "Write area.")
    assert [chat.title for chat in History(tmp_path / "history.sqlite").chats()] == ["Write area."]


def test_what_was_written_is_kept_when_the_page_is_left(serve, pipeline, open_context, tmp_path) -> None:
    pipeline.warm.set()
    page = opened(serve(pipeline), open_context())
    ask(page, "Write area.")
    expect(page.locator("#chat .bot-row")).to_contain_text("def area(width, height):")
    other = page.context.new_page()
    page.close()
    history = History(tmp_path / "history.sqlite")
    (chat,) = history.chats()
    eventually(other, lambda: bool((turn := history.path(chat.id)[0].turn).text) and turn.complete)
    (node,) = history.path(chat.id)
    assert (node.turn.text, node.turn.finish_reason) == (BEGINNING, "cancelled")
    history.close()


def test_a_conversation_deleted_in_another_window_is_said(page, tmp_path) -> None:
    answered(page, "Write area.")
    history = History(tmp_path / "history.sqlite")
    history.delete(history.chats()[0].id)
    history.close()
    ask(page, "Now rename it.")
    expect(page.get_by_text("This conversation has been deleted").first).to_be_visible()
    expect(page.locator("#prompt textarea")).to_have_value("Now rename it.")
