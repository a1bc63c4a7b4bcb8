"""States of the page that come up seldom, for people who see little; and a conversation by the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from outrider.app.chat.store.history import History

from ...attacks.conftest import targeted
from ...browser import WIDE, answered, ask, opened, rests, serious
from ..scripted import Refused, ScriptedPipeline

expect.set_options(timeout=30_000)


@pytest.fixture
def open_page(
    serve: Callable[..., str], pipeline: ScriptedPipeline, open_context: Callable[..., Any]
) -> Callable[..., Page]:
    """Opens the page; answers come at once."""

    def open_page(said: str = "ready", kept_in: Path | None = None, **options: Any) -> Page:
        pipeline.warm.set()
        pipeline.gate.set()
        return opened(serve(pipeline, kept_in=kept_in), open_context(**options), WIDE, said=said)

    return open_page


def test_axe_finds_nothing_serious_in_the_login_form(tmp_path: Path, open_context: Callable[..., Any]) -> None:
    with targeted(tmp_path, keys=("0123456789abcdef",)) as target:
        page = open_context().new_page()
        page.goto(target.url)
        assert serious(page) == []
        page.get_by_label("Key").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        assert serious(page) == []


@pytest.mark.slow
def test_axe_finds_nothing_serious_where_something_is_asked_told_or_attached(open_page, pipeline, tmp_path) -> None:
    (tmp_path / "area.py").write_text("def area(): ...\n")
    page = open_page()
    answered(page, "Write area.")
    page.locator("#entry input[type=file]").set_input_files(tmp_path / "area.py")
    expect(page.locator("#entry-notes .files")).to_be_visible()
    found = {"attached files": serious(page)}
    page.locator("#delete").click()
    expect(page.locator("#sure")).to_be_visible()
    found["delete question"] = serious(page)
    page.locator("#keep").click()
    for _ in range(3):  # on a busy machine the message passes before it has been examined
        pipeline.refusal = Refused("No room.")
        ask(page, "Too long.")
        expect(page.locator(".toast-body")).to_be_visible()
        found["toast"] = serious(page)
        if page.locator(".toast-body").is_visible():
            break
    else:
        pytest.fail("The message was never there long enough to be examined.")
    assert {state: those for state, those in found.items() if those} == {}


@pytest.mark.slow
def test_axe_finds_nothing_serious_while_a_race_runs(open_page, pipeline) -> None:
    page = open_page()
    pipeline.gate.clear()
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.locator("#lanes pre").first).to_contain_text("def area(width, height):")
    expect(page.locator("#race-stop")).to_be_visible()
    assert serious(page) == []


@pytest.mark.slow
def test_axe_finds_nothing_serious_where_history_and_model_failed(open_page, pipeline, tmp_path, monkeypatch) -> None:
    def fail() -> None:
        raise Refused("There is no memory left.")

    monkeypatch.setattr(pipeline, "warm_up", fail)
    (tmp_path / "history.sqlite").write_bytes(b"damaged" * 1000)
    page = open_page("failed to start", tmp_path / "history.sqlite")
    expect(page.locator("#notice")).to_contain_text("damaged")
    assert serious(page) == []


@pytest.mark.slow
def test_axe_finds_nothing_serious_in_chinese(open_page) -> None:
    page = open_page(said="就绪", locale="zh-CN")
    page.wait_for_function("document.documentElement.lang === 'zh'")
    answered(page, "写一个函数。")
    assert serious(page) == []


@pytest.mark.slow
def test_a_conversation_by_the_keyboard_alone(open_page, pipeline, history_path) -> None:
    """Ask, stop, edit, look at the other branch, begin anew, come back, and delete."""
    page = open_page()
    rests(page)
    pressed = page.keyboard.press

    def go_to(where: str, key: str = "Tab") -> None:
        for _ in range(80):
            if page.evaluate("where => document.activeElement.matches(where)", where):
                return
            pressed(key)
        pytest.fail(f"{where} cannot be reached.")

    go_to("#prompt textarea")
    page.keyboard.type("Write area.")
    pressed("Enter")
    expect(page.locator("#chat .figures")).to_have_count(1)
    pipeline.gate.clear()
    go_to("#prompt textarea")
    page.keyboard.type("Now rename it.")
    pressed("Enter")
    expect(page.locator("#chat .bot-row")).to_have_count(2)
    expect(page.locator("#chat .bot-row").last).to_contain_text("def area")
    expect(page.locator("#stop")).to_be_visible()
    pressed("Escape")
    expect(page.locator("#chat .figures").last).to_contain_text("stopped")
    pipeline.gate.set()
    expect(page.locator("#chat .action-edit")).to_have_count(2)
    expect(page.locator("#send")).to_be_visible()
    rests(page)
    go_to("#chat .action-edit", "Shift+Tab")
    pressed("Enter")
    expect(page.locator("#prompt textarea")).to_have_value("Now rename it.")
    expect(page.locator("#prompt textarea")).to_be_focused()
    pressed("Control+A")
    page.keyboard.type("Write volume.")
    pressed("Enter")
    expect(page.locator("#chat .branches")).to_have_text("‹2/2›")
    expect(page.locator("#chat .figures")).to_have_count(2)
    go_to("#chat .action-back", "Shift+Tab")
    pressed("Enter")
    expect(page.locator("#chat .said")).to_have_text(["Write area.", "Now rename it."])
    go_to("#new")
    pressed("Enter")
    expect(page.locator("#chat .user-row")).to_have_count(0)
    go_to("#listing input")
    pressed("Space")
    expect(page.locator("#chat .said")).to_have_text(["Write area.", "Now rename it."])
    go_to("#delete")
    pressed("Enter")
    go_to("#sure")
    pressed("Enter")
    expect(page.locator("#listing label")).to_have_count(0)
    history = History(history_path)
    assert history.chats() == []
    history.close()
