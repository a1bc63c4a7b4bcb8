"""Kept conversations, as someone sees them who uses the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from outrider.app.chat.store.history import History

from ...browser import WIDE, answered, ask, eventually, listed, opened
from ..scripted import BEGINNING, END, Refused, ScriptedPipeline

expect.set_options(timeout=60_000)


@pytest.fixture
def page(open_kept: Callable[..., Page], pipeline: ScriptedPipeline) -> Page:
    """The page in a wide window, where the list is open; answers come at once."""
    pipeline.warm.set()
    pipeline.gate.set()
    page = open_kept(pipeline, WIDE)
    expect(page.locator("#chats.open")).to_have_count(1)
    return page


def test_conversations_are_there_after_a_restart(page, serve, pipeline, open_context, history_path) -> None:
    answered(page, "Write area.")
    answered(page, "Now rename it.", 2)
    other = opened(serve(pipeline, kept_in=history_path), open_context(), WIDE)
    expect(listed(other)).to_have_text(["Write area."])
    listed(other).click()
    expect(other.locator("#chat .said")).to_have_text(["Write area.", "Now rename it."])
    assert other.locator("#chat pre.answer").first.inner_text() == BEGINNING + END
    answered(other, "And again.", 3)
    assert [message["content"] for message in pipeline.requests[-1][0]][::2] == [
        "Write area.", "Now rename it.", "And again.",
    ]  # fmt: skip


@pytest.mark.slow
def test_conversations_are_listed_searched_renamed_and_deleted(page) -> None:
    answered(page, "Write area.")
    page.locator("#new").click()
    expect(page.locator("#chat .user-row")).to_have_count(0)
    answered(page, "Write volume.")
    expect(listed(page)).to_have_text(["Write volume.", "Write area."])
    page.locator("#search input, #search textarea").fill("AREA.")
    expect(listed(page)).to_have_text(["Write area."])
    expect(page.locator("#listing")).not_to_contain_text("No conversation")
    page.locator("#search input, #search textarea").fill("Perimeter")
    expect(page.locator("#listing")).to_contain_text("No conversation contains this.")
    page.locator("#search input, #search textarea").fill("")
    expect(listed(page)).to_have_count(2)
    expect(page.locator("#listing")).not_to_contain_text("No conversation")
    page.locator("#chat-title input, #chat-title textarea").fill("Boxes")
    page.get_by_role("button", name="Rename").click()
    expect(listed(page)).to_have_text(["Boxes", "Write area."])
    page.locator("#delete").click()
    page.locator("#sure").click()
    expect(listed(page)).to_have_text(["Write area."])
    expect(page.locator("#chat .user-row")).to_have_count(0)
    expect(page.locator("#delete")).to_be_visible()


@pytest.mark.slow
def test_a_retry_is_a_branch_and_both_can_be_seen(page, pipeline) -> None:
    answered(page, "Write area.")
    page.locator("#mode").get_by_text("Plain").click()
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#chat .branches")).to_have_text("‹2/2›")
    expect(page.locator("#chat .figures")).to_contain_text("Plain")
    page.locator("#chat .action-back").click()
    expect(page.locator("#chat .branches")).to_have_text("‹1/2›")
    expect(page.locator("#chat .figures")).to_contain_text("Automatic")
    answered(page, "Now rename it.", 2)
    page.locator("#chat .action-on").click()
    expect(page.locator("#chat .figures")).to_have_count(1)
    page.locator("#chat .action-on").click()
    expect(page.locator("#chat .figures")).to_have_count(2)
    assert [message["content"] for message in pipeline.requests[-1][0]][::2] == ["Write area.", "Now rename it."]


@pytest.mark.slow
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
    expect(page.get_by_text("This is not a valid JSON file")).to_be_visible()
    expect(listed(page)).to_have_count(3)


@pytest.mark.slow
def test_a_damaged_file_is_set_aside_and_the_page_says_so_and_works(serve, pipeline, open_context, tmp_path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"damaged" * 1000)
    pipeline.warm.set()
    pipeline.gate.set()
    page = opened(serve(pipeline, kept_in=tmp_path / "history.sqlite"), open_context())
    expect(page.locator("#notice")).to_contain_text("The history file was damaged")
    (aside,) = tmp_path.glob("history.damaged-*.sqlite")
    expect(page.locator("#notice")).to_contain_text(aside.name)
    answered(page, "Write area.")
    assert [chat.title for chat in History(tmp_path / "history.sqlite").chats()] == ["Write area."]


@pytest.mark.slow
def test_what_was_written_is_kept_when_the_page_is_left(serve, pipeline, open_context, history_path) -> None:
    pipeline.warm.set()
    page = opened(serve(pipeline), open_context())
    ask(page, "Write area.")
    expect(page.locator("#chat .bot-row")).to_contain_text("def area(width, height):")
    other = page.context.new_page()
    page.close()
    history = History(history_path)
    (chat,) = history.chats()
    eventually(other, lambda: bool((turn := history.path(chat.id)[0].turn).text) and turn.complete)
    (node,) = history.path(chat.id)
    assert (node.turn.text, node.turn.finish_reason) == (BEGINNING, "cancelled")
    history.close()


def test_a_conversation_deleted_in_another_window_is_said(page, history_path) -> None:
    answered(page, "Write area.")
    history = History(history_path)
    history.delete(history.chats()[0].id)
    history.close()
    ask(page, "Now rename it.")
    expect(page.get_by_text("This conversation has been deleted").first).to_be_visible()
    expect(page.locator("#prompt textarea")).to_have_value("Now rename it.")


def settings_open(page: Page) -> None:
    page.locator("#settings .toggle-button").click()


@pytest.mark.parametrize("seed", ["-1", str(2**53 + 1)])  # of which a browser would make another one
def test_a_seed_that_cannot_be_kept_to_is_refused_before_anything_is_kept(
    page, pipeline, history_path, seed: str
) -> None:
    settings_open(page)
    page.locator("#settings").get_by_label("Seed").fill(seed)
    ask(page, "Write area.")
    expect(page.get_by_text("Seed must be 0 or more, up to 2^53 - 1").first).to_be_visible()
    expect(page.locator("#prompt textarea")).to_have_value("Write area.")
    expect(page.locator("#chat .user-row")).to_have_count(0)
    history = History(history_path)
    assert history.chats() == []
    history.close()
    page.locator("#settings").get_by_label("Seed").fill("3")
    page.locator("#send").click()
    expect(page.locator("#chat .figures")).to_have_count(1)


@pytest.mark.slow
def test_with_sampling_a_retry_has_a_new_seed_and_an_empty_one_is_new_each_time(page, pipeline) -> None:
    settings_open(page)
    page.locator("#settings").get_by_label("number input for Temperature").fill("0.7")
    answered(page, "Write area.")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#chat .branches")).to_have_text("‹2/2›")
    expect(page.locator("#chat .figures")).to_have_count(1)
    page.locator("#settings").get_by_label("Seed").fill("")
    answered(page, "Now rename it.", 2)
    answered(page, "And again.", 3)
    seeds = [options["rng_seed"] for _, options in pipeline.requests]
    assert seeds[0] == 0
    assert len(set(seeds)) == 4
    expect(page.locator("#chat .figures").last).to_contain_text(f"seed {seeds[-1]}")


def test_without_sampling_a_retry_says_that_the_same_comes_back(page) -> None:
    answered(page, "Write area.")
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_text("Without sampling, the answer is always the same").first).to_be_visible()
    expect(page.locator("#chat .branches")).to_have_text("‹2/2›")


@pytest.mark.slow
def test_fractions_are_cut_and_the_conversation_opens_again(page, pipeline) -> None:
    settings_open(page)
    for label, value in (("Max answer tokens", "20.5"), ("Draft length (0 = automatic)", "2.5")):
        page.locator("#settings").get_by_label(f"number input for {label}").fill(value)
    answered(page, "Write area.")
    assert pipeline.requests[0][1]["max_new_tokens"] in (20, 21)
    page.locator("#new").click()
    expect(page.locator("#chat .user-row")).to_have_count(0)
    listed(page).click()
    expect(page.locator("#chat .figures")).to_have_count(1)


@pytest.mark.slow
def test_the_conversation_that_was_asked_about_is_deleted_and_no_other(page, tmp_path) -> None:
    answered(page, "Write area.")
    expect(listed(page)).to_have_count(1)
    page.locator("#new").click()
    expect(page.locator("#chat .user-row")).to_have_count(0)
    answered(page, "Write volume.")
    expect(listed(page)).to_have_count(2)
    page.locator("#delete").click()
    listed(page).nth(1).click()  # turning to another one takes the question back
    expect(page.locator("#chat .said")).to_have_text(["Write area."])
    expect(page.locator("#sure")).to_be_hidden()
    expect(page.locator("#delete")).to_be_visible()
    expect(listed(page)).to_have_count(2)
    page.locator("#delete").click()
    page.locator("#sure").click()
    expect(listed(page)).to_have_text(["Write volume."])


@pytest.mark.slow
def test_what_was_taken_back_is_kept_and_opens_again(page) -> None:
    answered(page, "Write area.")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("The answer is kept").first).to_be_visible()
    expect(page.locator("#prompt textarea")).to_have_value("Write area.")
    page.locator("#new").click()
    expect(page.locator("#listing input:checked")).to_have_count(0)
    listed(page).click()
    expect(page.locator("#chat .said")).to_have_text(["Write area."])
    expect(page.locator("#chat .figures")).to_have_count(1)


@pytest.mark.slow
def test_a_refused_retry_shows_the_answer_that_there_was(page, pipeline) -> None:
    answered(page, "Write area.")
    pipeline.refusal = Refused("No room.")
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_text("No room.").first).to_be_visible()
    expect(page.locator("#prompt textarea")).to_have_value("Write area.")
    expect(page.locator("#chat .figures")).to_have_count(1)
    pipeline.refusal = None
    page.locator("#send").click()
    expect(page.locator("#chat .branches")).to_have_text("‹2/2›")


@pytest.mark.slow
def test_settings_are_there_after_a_reload_and_in_presets_with_the_mode(page, pipeline) -> None:
    settings_open(page)
    page.locator("#mode").get_by_text("Prompt lookup").click()
    page.locator("#settings").get_by_label("number input for Temperature").fill("0.7")
    page.locator("#settings #system textarea").fill("Be brief.")
    page.locator("#preset input").fill("brief")
    page.get_by_role("button", name="Save preset").click()
    expect(page.get_by_text("Saved as “brief”")).to_be_visible()
    page.wait_for_timeout(1000)  # what the browser may take to keep them on a slow machine
    page.reload()
    expect(page.locator("#status")).to_contain_text("ready")
    expect(page.locator("#mode input:checked")).to_have_value("lookup")
    answered(page, "Write area.")
    messages, options = pipeline.requests[-1]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert (options["mode"], options["temperature"]) == ("lookup", 0.7)
    page.locator("#mode").get_by_text("Plain").click()
    settings_open(page)
    page.locator("#preset input").click()
    page.get_by_role("option", name="brief").click()
    expect(page.locator("#mode input:checked")).to_have_value("lookup")


@pytest.mark.slow
def test_what_is_typed_waits_in_its_conversation(page) -> None:
    answered(page, "Write area.")
    page.locator("#prompt textarea").fill("Not yet sent.")
    page.locator("#new").click()
    expect(page.locator("#prompt textarea")).to_have_value("")
    page.locator("#prompt textarea").fill("Something else.")
    listed(page).click()
    expect(page.locator("#prompt textarea")).to_have_value("Not yet sent.")
    page.locator("#new").click()
    expect(page.locator("#prompt textarea")).to_have_value("Something else.")


def second_window_on_a_growing_answer(page: Page, pipeline: ScriptedPipeline) -> Page:
    """It has opened the conversation of `page`, whose answer waits for `pipeline.gate`."""
    pipeline.gate.clear()
    ask(page, "Write area.")
    expect(page.locator("#chat .bot-row")).to_contain_text("def area(width, height):")
    other = opened(page.url, page.context, WIDE)
    listed(other).click()
    expect(other.locator("#stop")).to_be_visible()
    return other


@pytest.mark.slow
def test_an_answer_in_another_window_is_seen_and_can_be_stopped(page, pipeline) -> None:
    other = second_window_on_a_growing_answer(page, pipeline)
    other.locator("#stop").click()
    expect(other.locator("#chat .figures")).to_contain_text("stopped")
    expect(page.locator("#chat .figures")).to_contain_text("stopped")
    expect(other.locator("#send")).to_be_visible()


@pytest.mark.slow
def test_a_window_that_opens_the_conversation_of_another_sees_its_answer_grow_and_end(page, pipeline) -> None:
    other = second_window_on_a_growing_answer(page, pipeline)
    pipeline.gate.set()
    expect(other.locator("#chat .bot-row")).to_contain_text("return width * height")
    expect(other.locator("#send")).to_be_visible()


@pytest.mark.slow
def test_a_window_that_turns_away_from_a_growing_answer_stays_where_it_went(page, pipeline) -> None:
    other = second_window_on_a_growing_answer(page, pipeline)
    other.locator("#new").click()
    expect(other.locator("#chat .bot-row")).to_have_count(0)
    pipeline.gate.set()
    expect(page.locator("#chat .figures")).to_have_count(1)
    other.wait_for_timeout(1500)  # what a late drawing would take
    expect(other.locator("#chat .bot-row")).to_have_count(0)
    expect(other.locator("#send")).to_be_visible()


@pytest.mark.slow
def test_what_needs_an_open_conversation_can_be_used_only_with_one(page) -> None:
    buttons = page.locator("#chat-buttons button:visible").filter(has_not_text="Import")
    for button in buttons.all():
        expect(button).to_be_disabled()
    answered(page, "Write area.")
    for button in buttons.all():
        expect(button).to_be_enabled()
    page.locator("#new").click()
    for button in buttons.all():
        expect(button).to_be_disabled()


def test_the_title_of_an_import_is_text_wherever_it_stands(page, tmp_path) -> None:
    fetched = []
    page.on("request", lambda request: fetched.append(request.url))
    title = '<img src="/poison.png" onerror="document.title=1"> ![x](/poison.png)'
    whole = {"format": "outrider-chat", "version": 1, "title": title, "tip": 0, "turns": [{"prompt": "Write area."}]}
    (tmp_path / "poison.json").write_text(json.dumps(whole))
    page.locator("input[type=file]").first.set_input_files(tmp_path / "poison.json")
    expect(listed(page)).to_have_text([title])
    expect(page.locator("#chat-title input, #chat-title textarea")).to_have_value(title)
    expect(page.get_by_text("Imported").first).to_be_visible()
    assert not [url for url in fetched if "poison.png" in url]
    assert page.title() == "Outrider"
