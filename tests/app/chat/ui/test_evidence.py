"""Saved time, the receipt, the race and the drafting tab, as someone sees them who uses the page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from outrider.pipelines import PromptTooLong

from ...browser import answered, ask, finish, fits, opened
from ..scripted import BEGINNING, END, ScriptedPipeline

expect.set_options(timeout=60_000)


@pytest.fixture
def page(open_kept: Callable[..., Page], pipeline: ScriptedPipeline) -> Page:
    """The page; answers come at once."""
    pipeline.warm.set()
    pipeline.gate.set()
    return open_kept(pipeline)


@pytest.mark.slow
def test_the_time_that_drafts_saved_stands_under_the_answer_and_in_the_legend(page) -> None:
    answered(page, "Write area.")
    # one pass of 100 ms, with three tokens instead of one at 80 ms each: 2 * 80 - 20
    expect(page.locator("#chat .saved")).to_have_text("140 ms saved")
    expect(page.locator("#chat .saved")).to_have_attribute("title", re.compile("text index 140 ms saved"))
    answered(page, "Now rename it.", 2)
    expect(page.locator("#legend")).to_contain_text("text index280 ms saved")
    page.locator("#mode").get_by_text("Plain").click()
    answered(page, "Now plainly.", 3)
    expect(page.locator("#chat .saved")).to_have_count(2)


@pytest.mark.slow
def test_a_receipt_replays_the_answer_without_drafts(page, pipeline) -> None:
    page.locator("#settings .toggle-button").click()
    page.locator("#settings").get_by_label("number input for Temperature").fill("0.8")
    page.locator("#settings").get_by_label("Seed").fill("42")
    page.locator("#settings .toggle-button").click()
    answered(page, "Write area.")
    answered(page, "Now rename it.", 2)
    page.locator("#chat .action-receipt").first.click()
    expect(page.locator("#chat .receipt")).to_contain_text("identical 2 tokens without drafting")
    expect(page.locator("#chat .receipt")).to_contain_text("490 ms")
    # the replay took 490 ms for the one token after the first: 3 * 490 - 100, measured now
    expect(page.locator("#chat .saved").first).to_have_text("1.37 s saved")
    first, _, replay = pipeline.requests
    assert replay == (first[0], first[1] | {"mode": "off"})
    page.reload()
    page.locator("#listing label").click()
    expect(page.locator("#chat .receipt")).to_contain_text("identical 2 tokens without drafting")


def test_a_receipt_says_where_the_replay_differs(page, pipeline, monkeypatch) -> None:
    answered(page, "Write area.")
    monkeypatch.setattr(pipeline, "end_token", 3)
    page.locator("#chat .action-receipt").click()
    expect(page.locator("#chat .receipt.other")).to_contain_text("without drafting, token 2 is different")


@pytest.mark.slow
def test_a_receipt_of_another_model_is_refused(page, pipeline, serve, open_context) -> None:
    answered(page, "Write area.")
    other = opened(serve(pipeline, "another"), open_context())
    other.locator("#listing label").click()
    other.locator("#chat .action-receipt").click()
    expect(other.get_by_text("scripted wrote this answer, but another is loaded")).to_be_visible()


def test_the_race_runs_both_one_after_the_other_and_compares_them(page, pipeline) -> None:
    pipeline.gate.clear()
    page.get_by_role("tab", name="Race").click()
    page.locator("#race-prompt textarea").fill("Write area.")
    page.locator("#start").click()
    expect(page.locator("#lanes pre").first).to_contain_text("def area(width, height):")
    expect(page.locator("#lanes section").nth(1)).to_contain_text("waiting for its turn")
    assert [options["mode"] for _, options in pipeline.requests] == ["off"]
    pipeline.gate.set()
    verdict = "Identical 2 tokens. 500 ms with drafting, 500 ms without (no faster)."
    expect(page.locator("#lanes .verdict")).to_have_text(verdict)
    # what one drafted pass took longer than usual tells nothing of drafting
    expect(page.locator("#lanes .saved")).to_have_count(0)
    assert page.locator("#lanes pre").all_inner_texts() == [BEGINNING + END] * 2
    assert [options["mode"] for _, options in pipeline.requests] == ["off", "auto"]
    assert [messages for messages, _ in pipeline.requests] == [[{"role": "user", "content": "Write area."}]] * 2
    assert pipeline.speculation.emptied == 2
    expect(page.locator("#start")).to_be_visible()


@pytest.mark.slow
def test_a_race_that_another_window_disturbed_says_so_and_can_be_run_again(page, pipeline, serve, open_context) -> None:
    other = opened(page.url, open_context())
    pipeline.gate.clear()
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.locator("#lanes pre").first).to_contain_text("def area(width, height):")
    expect(page.locator("#lanes .disturbed")).to_have_count(0)
    ask(other, "Write area.")
    expect(page.locator("#lanes .disturbed")).to_be_visible()
    other.locator("#stop").click()
    expect(other.locator("#chat .figures")).to_contain_text("stopped")
    pipeline.gate.set()
    expect(page.locator("#lanes .verdict")).to_have_text("Identical 2 tokens. 500 ms with drafting, 500 ms without.")
    expect(page.locator("#lanes .disturbed")).to_be_visible()
    page.get_by_role("button", name="Run again").click()
    expect(page.locator("#lanes .verdict")).to_contain_text("no faster")
    expect(page.locator("#lanes .disturbed")).to_have_count(0)
    expect(page.locator("#start")).to_have_text("Start")


def test_a_race_shows_how_much_of_its_prompt_is_read(page, pipeline) -> None:
    pipeline.read_tokens = 500
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.locator("#lanes section").first).to_contain_text("Read 500 of 2,000 tokens (25%)")
    expect(page.locator("#lanes section").nth(1)).to_contain_text("waiting for its turn")
    pipeline.streams[0].read_tokens = 2000
    expect(page.locator("#lanes section").nth(1)).to_contain_text("Read 500 of 2,000 tokens (25%)")
    pipeline.streams[1].read_tokens = 2000
    expect(page.locator("#lanes .verdict")).to_contain_text("Identical 2 tokens")


def test_after_a_race_that_failed_another_can_begin(page, pipeline) -> None:
    pipeline.refusal = PromptTooLong("The prompt is too long: shorten it.")
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.get_by_text("The prompt is too long")).to_be_visible()
    expect(page.locator("#start")).to_be_visible()
    expect(page.locator("#race-stop")).not_to_be_visible()
    pipeline.refusal = None
    page.locator("#start").click()
    expect(page.locator("#lanes .verdict")).to_contain_text("Identical 2 tokens")


def test_of_a_race_that_failed_nothing_seems_to_wait(page, pipeline) -> None:
    pipeline.refusal = PromptTooLong("The prompt is too long: shorten it.")
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.get_by_text("The prompt is too long")).to_be_visible()
    expect(page.locator("#lanes")).to_have_text("")


@pytest.mark.slow
def test_where_every_answer_is_drafted_there_is_nothing_to_compare_with(serve, pipeline, open_context) -> None:
    pipeline.device, pipeline.modes, pipeline.exact = "GPU", ("lookup", "auto"), False
    pipeline.warm.set()
    page = opened(serve(pipeline), open_context())
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    page.locator("#chat .action-receipt").click()
    expect(page.get_by_text("drafts in every answer")).to_be_visible()
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.get_by_text("nothing to race against")).to_be_visible()
    expect(page.locator("#start")).to_be_visible()
    assert len(pipeline.requests) == 1


def test_a_race_can_be_stopped(page, pipeline) -> None:
    pipeline.gate.clear()
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.locator("#lanes pre").first).to_contain_text("def area(width, height):")
    page.locator("#race-stop").click()
    expect(page.locator("#start")).to_be_visible()
    assert len(pipeline.requests) == 1


@pytest.mark.slow
def test_the_drafting_tab_shows_acceptance_by_depth_and_what_was_chosen(page) -> None:
    page.get_by_role("tab", name="Drafting").click()
    expect(page.locator("#insight")).to_contain_text("Nothing has been drafted yet.")
    page.get_by_role("tab", name="Chat").click()
    answered(page, "Write area.")
    page.get_by_role("tab", name="Drafting").click()
    depths, lengths, drafters = (page.locator("#insight table").nth(i).locator("tbody tr") for i in range(3))
    expect(depths).to_have_text(["1100%1 / 1", "2100%1 / 1", "30%0 / 1"])
    expect(lengths).to_have_text(["050%1", "350%1"])
    expect(drafters).to_have_text(["text index100%3"])


@pytest.mark.slow
def test_the_drafting_tab_follows_an_answer_while_it_is_written(page, pipeline) -> None:
    pipeline.gate.clear()
    ask(page, "Write area.")
    expect(page.locator("#chat .bot-row")).to_contain_text("def area(width, height):")
    page.get_by_role("tab", name="Drafting").click()
    expect(page.locator("#insight")).to_contain_text("Nothing has been drafted yet.")
    pipeline.streams[0].passes = 2
    expect(page.locator("#insight tbody").nth(1).locator("tr")).to_have_text(["050%1", "350%1"])
    page.get_by_role("tab", name="Chat").click()
    page.locator("#stop").click()
    expect(page.locator("#chat .figures")).to_contain_text("stopped")
    page.get_by_role("tab", name="Drafting").click()
    expect(page.locator("#insight tbody").nth(1).locator("tr")).to_have_text(["050%1", "350%1"])  # counted once


@pytest.mark.slow
def test_a_receipt_can_be_stopped(page, pipeline) -> None:
    answered(page, "Write area.")
    pipeline.gate.clear()
    page.locator("#chat .action-receipt").click()
    expect(page.locator("#chat .receipt")).to_contain_text("Verifying without drafting")
    page.locator("#stop").click()
    expect(page.locator("#chat .receipt")).to_have_count(0)
    expect(page.locator("#send")).to_be_visible()
    pipeline.gate.set()
    ask(page, "Now rename it.")
    expect(page.locator("#chat .figures")).to_have_count(2)


@pytest.mark.slow
def test_a_stopped_answer_is_replayed_as_far_as_it_went(page, pipeline) -> None:
    pipeline.gate.clear()
    ask(page, "Write area.")
    expect(page.locator("#chat .bot-row")).to_contain_text("def area(width, height):")
    page.locator("#stop").click()
    expect(page.locator("#chat .figures")).to_contain_text("stopped")
    pipeline.gate.set()
    page.locator("#chat .action-receipt").click()
    expect(page.locator("#chat .receipt")).to_contain_text("without drafting")
    assert [options["max_new_tokens"] for _, options in pipeline.requests] == [512, 1]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_race_drafting_and_settings_fit_a_phone(serve, pipeline, open_context, scheme) -> None:
    pipeline.warm.set()
    pipeline.gate.set()
    page = opened(serve(pipeline), open_context(), (390, 844), scheme)
    expect(page.locator("#chats.open")).to_have_count(0)  # it would cover everything
    answered(page, "Write area.")
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.locator("#lanes .verdict")).to_be_visible()
    fits(page, "#race *")
    page.get_by_role("tab", name="Drafting").click()
    expect(page.locator("#insight table")).to_have_count(3)
    fits(page, "#insight *")
    for side in ("#chats", "#settings"):
        page.locator(f"{side} .toggle-button").click()
        expect(page.locator(f"{side}.open")).to_have_count(1)
        fits(page, f"{side} .sidebar-content *")
        page.locator(f"{side} .toggle-button").click()
    fits(page, "html")
