"""What someone sees who uses the page, with a scripted pipeline behind it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from outrider.app.chat.ui.examples import EXAMPLES

from ...browser import answers, ask, eventually, finish, fits, opened
from .. import scripted
from ..scripted import BEGINNING, END, Refused, ScriptedPipeline

expect.set_options(timeout=60_000)


@pytest.fixture
def page(open_kept: Callable[..., Page], pipeline: ScriptedPipeline) -> Page:
    """The page, ready to be used; answers wait behind the gate after their first line."""
    pipeline.warm.set()
    return open_kept(pipeline)


@pytest.mark.slow
def test_the_page_shows_that_the_model_warms_up_and_when_it_is_ready(serve, pipeline, open_context) -> None:
    page = opened(serve(pipeline, "my-pair"), open_context(), said="my-pair warming up")
    moves = "() => document.querySelector('#status .warming i').getAnimations().length"
    assert page.evaluate(moves) == 0, "for who asked for less motion"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(moves) == 1
    pipeline.warm.set()
    expect(page.locator("#status")).to_contain_text("my-pair ready")


@pytest.mark.slow
def test_a_model_that_fails_to_start_is_said_on_the_page(serve, pipeline, open_context, monkeypatch) -> None:
    def fail() -> None:
        raise Refused("no <memory>")

    monkeypatch.setattr(pipeline, "warm_up", fail)
    opened(serve(pipeline), open_context(), said="failed to start: no <memory>")


@pytest.mark.slow
def test_of_a_failure_that_nobody_foresaw_the_page_says_only_that(serve, pipeline, open_context, monkeypatch) -> None:
    monkeypatch.setattr(pipeline, "warm_up", lambda: {}["a prompt"])
    page = opened(serve(pipeline), open_context(), said="failed to start: Something went wrong")
    expect(page.locator("#status")).not_to_contain_text("a prompt")


@pytest.mark.slow
def test_a_device_without_exact_results_is_said_on_the_page(serve, pipeline, open_context) -> None:
    pipeline.exact = False
    pipeline.warm.set()
    page = opened(serve(pipeline), open_context())
    expect(page.locator("#status")).to_contain_text("the drafting mode can change the text")
    expect(page.locator("#small-print")).to_contain_text("the drafting mode can change the text")
    expect(page.locator("#title")).to_contain_text("as likely as without drafts")
    expect(page.locator("#title")).not_to_contain_text("same answer")


def test_a_device_with_exact_results_promises_the_same_answer(page) -> None:
    expect(page.locator("#title")).to_contain_text("The same answer, sooner")


@pytest.mark.slow
def test_a_device_without_drafts_offers_none_and_promises_nothing(serve, pipeline, open_context) -> None:
    pipeline.device, pipeline.modes, pipeline.exact = "GPU.1", ("off",), False
    pipeline.warm.set()
    page = opened(serve(pipeline), open_context())
    expect(page.locator("#status")).to_contain_text("ready on GPU.1")
    expect(page.locator("#small-print")).to_contain_text("Decoded by OpenVINO GenAI on GPU.1")
    expect(page.locator("#small-print")).to_contain_text("the same seed may give a different text")
    expect(page.locator("#title")).not_to_contain_text("same answer")
    expect(page.locator("#mode label")).to_have_text(["Plain"])
    expect(page.locator("#legend")).not_to_contain_text("draft")
    page.locator("#settings .toggle-button").click()
    expect(page.locator("#settings").get_by_label("number input for Max answer tokens")).to_be_visible()
    expect(page.locator("#settings").get_by_label("number input for Draft length")).to_have_count(0)
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    assert pipeline.requests[0][1]["mode"] == "off"


@pytest.mark.slow
def test_the_devices_of_both_models_are_seen(serve, pipeline, open_context) -> None:
    pipeline.device, pipeline.draft_device = "NPU", "GPU.1"
    pipeline.warm.set()
    page = opened(serve(pipeline), open_context())
    expect(page.locator("#status")).to_contain_text("ready on NPU, draft model on GPU.1")


def test_an_answer_is_seen_while_it_is_written(page, pipeline) -> None:
    ask(page, "Write area.")
    expect(page.locator("#chat .user-row")).to_contain_text("Write area.")
    expect(answers(page)).to_contain_text("def area(width, height):")
    expect(page.locator("#stop")).to_be_visible()
    expect(answers(page)).not_to_contain_text("return")
    finish(page, pipeline, 1)
    assert page.locator("#chat pre.answer").inner_text() == BEGINNING + END


def test_reasoning_is_folded_away_until_someone_opens_it(page, pipeline, monkeypatch) -> None:
    monkeypatch.setattr(scripted, "BEGINNING", "<think>\nTwo *factors*.\n</think>\n\nMultiply them.")
    ask(page, "Explain area.")
    finish(page, pipeline, 1)
    page.locator("#coloured input").uncheck()
    thoughts = page.locator("#chat details.thoughts")
    expect(thoughts.get_by_text("factors")).to_be_hidden()
    expect(answers(page)).to_contain_text("Multiply them.")
    expect(answers(page)).not_to_contain_text("think>")
    thoughts.get_by_text("Reasoning").click()
    expect(thoughts.get_by_text("factors")).to_be_visible()


def test_the_figures_stand_under_the_answer(page, pipeline) -> None:
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    for figure in ("Automatic", "1,234 tokens", "86 tokens/s", "7 passes", "31 of 40 drafted tokens accepted"):
        expect(page.locator("#chat .figures")).to_contain_text(figure)


def test_stop_ends_the_answer_and_keeps_what_was_written(page, pipeline) -> None:
    ask(page, "Write area.")
    expect(answers(page)).to_contain_text("def area(width, height):")
    page.locator("#stop").click()
    expect(page.locator("#chat .figures")).to_contain_text("stopped")
    expect(page.locator("#send")).to_be_visible()
    expect(answers(page)).to_contain_text("def area(width, height):")
    assert pipeline.streams[0].cancelled


def test_leaving_the_page_stops_the_answer(page, pipeline) -> None:
    ask(page, "Write area.")
    expect(answers(page)).to_contain_text("def area(width, height):")
    other = page.context.new_page()
    page.close()
    eventually(other, lambda: pipeline.streams[0].cancelled)


@pytest.mark.slow
def test_the_next_prompt_carries_the_conversation(page, pipeline) -> None:
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    ask(page, "Now rename it.")
    finish(page, pipeline, 2)
    assert pipeline.requests[1][0] == [
        {"role": "user", "content": "Write area."},
        {"role": "assistant", "content": BEGINNING + END},
        {"role": "user", "content": "Now rename it."},
    ]


def test_retry_asks_the_same_again(page, pipeline) -> None:
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#stop")).to_be_visible()
    finish(page, pipeline, 1)
    assert [messages for messages, _ in pipeline.requests] == [[{"role": "user", "content": "Write area."}]] * 2


def test_retry_and_undo_say_their_names_side_by_side(page, pipeline) -> None:
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    for name in ("Retry", "Undo"):
        button = page.get_by_role("button", name=name)
        expect(button).to_be_visible()
        assert button.evaluate("each => each.scrollWidth <= each.clientWidth"), "its name leaves its box"
        assert button.evaluate("each => getComputedStyle(each, '::after').content").startswith(f'"{name}"')


def test_retry_and_undo_wait_for_the_end_of_the_answer(page, pipeline) -> None:
    ask(page, "Write area.")
    expect(answers(page)).to_contain_text("def area(width, height):")
    for name in ("Retry", "Undo"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    finish(page, pipeline, 1)
    for name in ("Retry", "Undo"):
        expect(page.get_by_role("button", name=name)).to_be_enabled()


def test_a_second_prompt_waits_for_the_end_of_the_answer(page, pipeline) -> None:
    ask(page, "Write area.")
    expect(answers(page)).to_contain_text("def area(width, height):")
    page.locator("#prompt textarea").fill("Too soon.")
    page.locator("#prompt textarea").press("Enter")
    expect(page.get_by_text("stop it first")).to_be_visible()
    expect(page.locator("#prompt textarea")).to_have_value("Too soon.")
    finish(page, pipeline, 1)
    assert len(pipeline.requests) == 1


@pytest.mark.slow
def test_undo_takes_the_last_turn_back_into_the_box(page, pipeline) -> None:
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    ask(page, "Now rename it.")
    finish(page, pipeline, 2)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#chat .user-row")).to_have_count(1)
    expect(page.locator("#prompt textarea")).to_have_value("Now rename it.")


@pytest.mark.slow
def test_new_begins_anew(page, pipeline) -> None:
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    page.locator("#new").click()
    expect(page.locator("#chat .user-row")).to_have_count(0)
    ask(page, "Something else.")
    finish(page, pipeline, 1)
    assert pipeline.requests[1][0] == [{"role": "user", "content": "Something else."}]


@pytest.mark.slow
def test_new_while_an_answer_is_written_ends_it(page, pipeline) -> None:
    ask(page, "Write area.")
    expect(answers(page)).to_contain_text("def area(width, height):")
    page.locator("#new").click()
    expect(page.locator("#chat .user-row")).to_have_count(0)
    expect(page.locator("#send")).to_be_visible()
    ask(page, "Something else.")
    finish(page, pipeline, 1)
    assert pipeline.streams[0].cancelled
    assert pipeline.requests[1][0] == [{"role": "user", "content": "Something else."}]


@pytest.mark.slow
def test_the_mode_can_be_switched_between_turns(page, pipeline) -> None:
    for count, (label, mode) in enumerate([("Draft model", "draft"), ("Plain", "off"), ("Prompt lookup", "lookup")], 1):
        page.locator("#mode").get_by_text(label).click()
        ask(page, "Write area.")
        finish(page, pipeline, count)
        assert pipeline.requests[-1][1]["mode"] == mode
        expect(page.locator("#chat .figures").last).to_contain_text(label)


def test_tokens_are_marked_with_their_source_until_code_is_wanted(page, pipeline) -> None:
    page.locator("#mode").get_by_text("Draft model").click()
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    marked = page.locator("#chat .from-draft_model")
    expect(marked.first).to_have_text("def area(width, height):")
    assert marked.first.evaluate("mark => getComputedStyle(mark).borderBottomStyle") == "dashed"
    expect(page.locator("#chat .from-target")).to_have_text("return width * height")
    page.locator("#coloured input").uncheck()
    expect(marked).to_have_count(0)
    expect(page.locator("#chat code.language-python")).to_contain_text("def area(width, height):")
    page.locator("#coloured input").check()
    expect(marked).not_to_have_count(0)


def test_the_sampling_settings_reach_the_pipeline(page, pipeline) -> None:
    page.locator("#settings .toggle-button").click()
    for label, value in (
        ("Temperature", "0.8"), ("Top-k (0 = no limit)", "40"), ("Top-p", "0.9"), ("Min-p", "0.05"),
        ("Repetition penalty", "1.1"), ("Max answer tokens", "77"), ("Draft length (0 = automatic)", "3"),
    ):  # fmt: skip
        page.locator("#settings").get_by_label(f"number input for {label}").fill(value)
    page.locator("#settings").get_by_label("Seed").fill("42")
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    assert pipeline.requests[0][1] == {
        "mode": "auto", "do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05,
        "repetition_penalty": 1.1, "rng_seed": 42, "max_new_tokens": 77, "num_assistant_tokens": 3,
    }  # fmt: skip
    expect(page.locator("#chat .figures")).to_contain_text("seed 42")


@pytest.mark.slow
def test_a_refused_prompt_comes_back_with_the_reason(page, pipeline) -> None:
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    pipeline.refusal = Refused("The prompt has 9,999 tokens: shorten it.")
    ask(page, "Far too long.")
    expect(page.get_by_text("The prompt has 9,999 tokens: shorten it.")).to_be_visible()
    expect(page.locator("#prompt textarea")).to_have_value("Far too long.")
    expect(page.locator("#chat .user-row")).to_have_count(1)
    pipeline.refusal = None
    page.locator("#send").click()
    finish(page, pipeline, 2)


@pytest.mark.slow
def test_a_long_prompt_shows_how_much_of_it_is_read_and_can_be_stopped(page, pipeline) -> None:
    pipeline.read_tokens = 0
    ask(page, "Write area.")
    waiting, bar = page.locator("#chat .waiting"), page.locator("#chat .waiting progress")
    expect(waiting).to_contain_text("Reading 2,000 tokens")
    expect(bar).to_have_count(0)
    pipeline.streams[0].read_tokens = 500
    expect(waiting).to_contain_text("Read 500 of 2,000 tokens (25%)")
    assert bar.evaluate("bar => bar.position") == 0.25
    pipeline.streams[0].read_tokens = 2000
    expect(answers(page)).to_contain_text("def area(width, height):")
    expect(waiting).to_have_count(0)
    finish(page, pipeline, 1)
    ask(page, "Once more.")
    expect(waiting).to_contain_text("Reading 2,000 tokens")
    page.locator("#stop").click()
    expect(page.locator("#chat .figures").nth(1)).to_contain_text("stopped")


@pytest.mark.slow
def test_an_empty_prompt_asks_nothing(page, pipeline) -> None:
    ask(page, "  \n ")
    page.wait_for_timeout(2000)  # while it is being refused, Gradio ignores the button
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    assert len(pipeline.requests) == 1


def test_nothing_is_computed_behind_an_event_that_nobody_reads(page, pipeline, stages) -> None:
    """Gradio's statistics, which take the time of a pass of a small model and more."""
    ask(page, "Write area.")
    finish(page, pipeline, 1)
    (queue,) = (stage.page.blocks._queue for stage in stages if stage.is_taken)
    assert queue.events_recorded > 0
    assert queue.cached_event_analytics_summary == {"functions": {}}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_an_example_is_sent_as_it_stands(page, pipeline, example) -> None:
    page.locator("#chat .example").get_by_text(example.title, exact=True).click()
    finish(page, pipeline, 1)
    assert pipeline.requests[0][0] == [{"role": "user", "content": example.prompt}]
    shown = "\n".join(page.locator("#chat .user-row").locator(".said, pre.code").all_inner_texts())
    assert [line.strip() for line in shown.split("\n") if line.strip()] == [
        line.strip() for line in example.prompt.split("\n") if line.strip()
    ]


def test_html_in_a_prompt_is_shown_and_not_run(page, pipeline) -> None:
    prompt = "<img src=x onerror=\"document.title='run'\"> *stars* & <b>tags</b>"
    ask(page, prompt)
    finish(page, pipeline, 1)
    expect(page.locator("#chat .user-row .said")).to_have_text(prompt)
    assert page.title() == "Outrider"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 860)], ids=["phone", "desktop"])
def test_everything_fits_and_the_colours_follow_the_system(
    serve, pipeline, open_context, width, height, scheme
) -> None:
    pipeline.warm.set()
    page = opened(serve(pipeline), open_context(), (width, height), scheme)
    ask(page, "Repeat this function:\ndef " + "long_" * 30 + "name(value):\n    return value")
    finish(page, pipeline, 1)
    fits(page, "html, #masthead, #chat, #composer, #send, #mode label, .message-content", below=True)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = map(int, re.findall(r"\d+", background)[:3])
    assert (red + green + blue < 3 * 60) == (scheme == "dark")
