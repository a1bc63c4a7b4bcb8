"""Editing, files, system prompt, presets and the meter, as someone sees them who uses the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from outrider.app.chat.store.history import History

from ...browser import WIDE, answered, eventually, opened
from ..scripted import BEGINNING, END, PROMPT_TOKENS, ScriptedPipeline

expect.set_options(timeout=60_000)


@pytest.fixture
def page(open_kept: Callable[..., Page], pipeline: ScriptedPipeline) -> Page:
    """The page in a wide window; answers come at once."""
    pipeline.warm.set()
    pipeline.gate.set()
    return open_kept(pipeline, WIDE, permissions=["clipboard-read", "clipboard-write"])


def box(page: Page) -> object:
    return page.locator("#prompt textarea")


@pytest.mark.slow
def test_an_edited_prompt_begins_a_branch_and_the_old_one_is_kept(page, pipeline) -> None:
    answered(page, "Write area.")
    answered(page, "Now rename it.", 2)
    page.locator("#chat .action-edit").first.click()
    expect(box(page)).to_have_value("Write area.")
    expect(box(page)).to_be_focused()
    expect(page.locator("#entry-notes")).to_contain_text("editing an earlier prompt")
    answered(page, "Write volume.")
    expect(page.locator("#entry-notes .editing")).to_have_count(0)
    assert pipeline.requests[-1][0] == [{"role": "user", "content": "Write volume."}]
    expect(page.locator("#chat .said")).to_have_text(["Write volume."])
    page.locator("#chat .action-back").click()
    expect(page.locator("#chat .said")).to_have_text(["Write area.", "Now rename it."])


@pytest.mark.slow
def test_an_edit_can_be_left(page, pipeline) -> None:
    answered(page, "Write area.")
    page.locator("#chat .action-edit").click()
    expect(box(page)).to_have_value("Write area.")
    page.locator("#cancel-edit").click()
    expect(box(page)).to_have_value("")
    answered(page, "Now rename it.", 2)
    assert len(pipeline.requests[-1][0]) == 3


@pytest.mark.slow
def test_prompt_and_answer_can_be_copied(page) -> None:
    answered(page, "Write *area*.")
    for action, text in (("copy_prompt", "Write *area*."), ("copy_answer", BEGINNING + END)):
        page.locator(f"#chat .action-{action}").click()
        expect(page.locator(f"#chat .action-{action}")).to_have_text("Copied")
        page.wait_for_function("text => navigator.clipboard.readText().then(read => read === text)", arg=text)
        expect(page.locator(f"#chat .action-{action}")).to_have_text("Copy")


@pytest.mark.slow
def test_text_files_go_into_the_prompt_and_others_are_refused(page, pipeline, tmp_path: Path) -> None:
    (tmp_path / "area.py").write_text("def area(): ...\n")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\x00")
    upload = page.locator("#entry input[type=file]")
    upload.set_input_files(tmp_path / "area.py")
    expect(page.locator("#entry-notes")).to_contain_text("area.py (16 characters)")
    expect(page.locator("#entry-notes")).to_contain_text("Up to 256 KB")
    upload.set_input_files(tmp_path / "photo.png")
    expect(page.get_by_text("photo.png isn't a text file")).to_be_visible()
    answered(page, "Read.")
    assert pipeline.requests[-1][0] == [{"role": "user", "content": "Read.\n\narea.py:\n```\ndef area(): ...\n```"}]
    expect(page.locator("#chat .files")).to_have_text("area.py (16 characters)")
    expect(page.locator("#entry-notes .files")).to_have_count(0)
    upload.set_input_files(tmp_path / "area.py")
    page.locator("#detach").click()
    expect(page.locator("#entry-notes .files")).to_have_count(0)


@pytest.mark.slow
def test_a_preset_keeps_system_prompt_and_sampling(page, pipeline, open_context, history_path) -> None:
    page.locator("#settings .toggle-button").click()
    page.locator("#system textarea").fill("Be kind.")
    page.locator("#settings").get_by_label("number input for Temperature").fill("0.8")
    page.locator("#preset input").fill("warm")
    page.locator("#preset input").press("Enter")
    page.get_by_role("button", name="Save preset").click()
    history = History(history_path)
    eventually(page, lambda: "warm" in history.presets())
    history.close()
    other = opened(page.url, open_context(), WIDE)
    other.locator("#settings .toggle-button").click()
    other.locator("#preset input").click()
    other.get_by_role("option", name="warm").click()
    expect(other.locator("#system textarea")).to_have_value("Be kind.")
    answered(other, "Write area.")
    messages, options = pipeline.requests[-1]
    assert messages[0] == {"role": "system", "content": "Be kind."}
    assert options["temperature"] == 0.8


def test_the_meter_shows_the_tokens_that_the_template_makes(page) -> None:
    expect(page.locator("#meter")).to_contain_text("0 of 2,048 tokens")
    answered(page, "Write area.")
    used = len("user:Write area.") + len("assistant:" + BEGINNING + END)
    expect(page.locator("#meter")).to_contain_text(f"{used} of 2,048 tokens")


@pytest.mark.slow
def test_the_meter_counts_what_is_typed_or_written_and_forgets_what_is_undone(page, pipeline) -> None:
    def expect_used(tokens: int) -> None:
        expect(page.locator("#meter")).to_contain_text(f"Context: {tokens:,} of 2,048 tokens")

    box(page).fill("Write area.")
    expect_used(len("user:Write area."))
    answered(page, "Write area.")
    answered_with = len("user:Write area.") + len("assistant:" + BEGINNING + END)
    expect_used(answered_with)
    pipeline.gate.clear()
    box(page).fill("Now rename it.")
    expect_used(answered_with + len("user:Now rename it."))
    page.locator("#send").click()
    expect_used(PROMPT_TOKENS + 1)  # the scripted beginning
    page.locator("#stop").click()
    expect(page.locator("#chat .figures")).to_have_count(2)
    page.get_by_label("Undo").last.click()
    expect(box(page)).to_have_value("Now rename it.")
    box(page).fill("")
    expect_used(answered_with)


@pytest.mark.slow
def test_a_preset_is_deleted_only_when_that_is_confirmed(page, history_path) -> None:
    history = History(history_path)
    page.locator("#settings .toggle-button").click()
    for name in ("brief", "warm"):
        page.locator("#preset input").fill(name)
        page.locator("#preset input").press("Enter")
        page.get_by_role("button", name="Save preset").click()
        expect(page.get_by_text(f"Saved as “{name}”.")).to_be_visible()
    page.locator("#preset-delete").click()
    page.locator("#preset-keep").click()
    expect(page.locator("#preset-delete")).to_be_visible()
    page.locator("#preset-delete").click()
    page.locator("#preset input").click()
    page.get_by_role("option", name="brief").click()  # the question was about another one
    expect(page.locator("#preset-sure")).to_be_hidden()
    assert set(history.preset_names()) == {"brief", "warm"}
    page.locator("#preset-delete").click()
    page.locator("#preset-sure").click()
    eventually(page, lambda: list(history.preset_names()) == ["warm"])
    expect(page.locator("#preset input")).to_have_value("")
    page.locator("#preset input").fill("brief")
    page.locator("#preset input").press("Enter")
    page.locator("#preset-delete").click()
    expect(page.get_by_text("No preset of this name is saved.")).to_be_visible()
    history.close()


def test_keys_send_break_the_line_and_stop(page, pipeline) -> None:
    pipeline.gate.clear()
    box(page).fill("One")
    box(page).press("Shift+Enter")
    box(page).type("two")
    expect(box(page)).to_have_value("One\ntwo")
    box(page).press("Enter")
    expect(page.locator("#chat .bot-row")).to_contain_text("def area(width, height):")
    page.keyboard.press("Escape")
    expect(page.locator("#chat .figures")).to_contain_text("stopped")


@pytest.mark.slow
def test_escape_that_closes_a_list_stops_no_answer(page, pipeline) -> None:
    page.locator("#settings .toggle-button").click()
    page.locator("#preset input").fill("warm")
    page.locator("#preset input").press("Enter")
    page.get_by_role("button", name="Save preset").click()
    pipeline.gate.clear()
    box(page).fill("One")
    box(page).press("Enter")
    expect(page.locator("#chat .bot-row")).to_contain_text("def area(width, height):")
    page.locator("#preset input").click()
    expect(page.get_by_role("option").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("option")).to_have_count(0)
    box(page).focus()
    box(page).dispatch_event("keydown", {"key": "Escape", "isComposing": True, "bubbles": True})
    pipeline.gate.set()
    expect(page.locator("#chat .figures")).to_be_visible()
    expect(page.locator("#chat .figures")).not_to_contain_text("stopped")


def test_every_control_has_a_name_for_screen_readers(page) -> None:
    answered(page, "Write area.")
    for role, name in (
        ("textbox", "Prompt"), ("button", "Send"), ("button", "Attach text files"), ("radio", "Automatic"),
        ("textbox", "Search conversations"), ("button", "Edit"), ("button", "Receipt"), ("tab", "Race"),
    ):  # fmt: skip
        expect(page.get_by_role(role, name=name, exact=True)).to_have_count(1)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea, [role=combobox]")]
             .filter(part => part.offsetParent && part.type !== "file")
             .filter(part => !(part.innerText || part.ariaLabel || part.title || (part.labels && part.labels.length)))
             .map(part => part.outerHTML.slice(0, 200))"""
    )
    assert unnamed == []


@pytest.mark.slow
def test_two_windows_are_answered_at_the_same_time(page, pipeline) -> None:
    pipeline.gate.clear()
    other = opened(page.url, page.context, WIDE)
    for window, prompt in ((page, "Write area."), (other, "Write volume.")):
        box(window).fill(prompt)
        window.locator("#send").click()
    for window in (page, other):
        expect(window.locator("#chat .bot-row")).to_contain_text("def area(width, height):")
    page.locator("#stop").click()
    expect(page.locator("#chat .figures")).to_contain_text("stopped")
    expect(other.locator("#stop")).to_be_visible()
    pipeline.gate.set()
    expect(other.locator("#chat .figures")).not_to_contain_text("stopped")
    expect(other.locator("#chat .said")).to_have_text(["Write volume."])
