"""The page for people who use a keyboard or a screen reader, or see little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from outrider.app.chat.core.conversation import Turn
from outrider.app.chat.core.receipt import Receipt
from outrider.app.chat.core.time_saved import TimeSaved
from outrider.app.chat.store.history import History
from outrider.pipelines import Span

from ...browser import WIDE, answered, ask, opened, rests, serious
from ..scripted import STATS, ScriptedPipeline

expect.set_options(timeout=30_000)

ANSWER = """Here is `read_lines`, *quickly* ([docs](https://docs.example/lines)):

```python
@cache
def read_lines(path, limit=3):
    \"\"\"Return lines.\"\"\"
    # all of them
    return [f"{line!r}" for line in open(path) if 1 < limit]
```

| a | b |
|---|---|
| 1 | 2 |
"""
SOURCES = ("target", "prompt_lookup", "suffix", "earlier_turn", "reference", "draft_model", "grammar")


@pytest.fixture
def open_page(
    serve: Callable[..., str], pipeline: ScriptedPipeline, open_context: Callable[..., Any], history_path: Path
) -> Callable[..., Page]:
    """Opens the page with one conversation, which has something of everything."""

    def open_page(size: tuple[int, int] = WIDE, scheme: str | None = None, **options: Any) -> Page:
        history = History(history_path)
        chat = history.add_chat("A conversation")
        spans = tuple(Span(f"some_{source} ", source) for source in SOURCES)
        time_saved, kept = TimeSaved(80.0, {"suffix": 2.0}, {"suffix": 100.0}), Receipt(2, None, 0.4, 0.2)
        options_of = {"finish_reason": "stop", "token_ids": (1, 2), "stats": STATS}
        prompt = "Rename it:\ndef f(x):\n    return x"
        turn = Turn(prompt, spans=spans, time_saved=time_saved, receipt=kept, **options_of)
        first = history.add_turn(chat, None, turn)
        cut = {"finish_reason": "length", "token_ids": (1, 2), "stats": STATS, "receipt": Receipt(2, 1, 0.2, 0.2)}
        history.add_turn(chat, first, Turn("And as text?", spans=(Span(ANSWER, "target"),), **cut))
        history.close()
        pipeline.warm.set()
        pipeline.gate.set()
        return opened(serve(pipeline), open_context(**options), size, scheme)

    return open_page


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 390)])
def test_axe_finds_nothing_serious_in_any_state(open_page, pipeline, scheme, width) -> None:
    page = open_page((width, 900), scheme)
    expect(page.locator("#chats.open")).to_have_count(int(width >= 1100))
    found = {"start": serious(page)}
    if width < 1100:
        page.locator("#chats .toggle-button").click()
        found["list"] = serious(page)
    page.locator("#listing label").click()
    expect(page.locator("#chat .figures")).to_have_count(2)
    found["coloured"] = serious(page)
    page.locator("#coloured input").uncheck()
    expect(page.locator("#chat .hl-k").first).to_be_visible()
    found["rendered"] = serious(page)
    page.locator("#chat .action-edit").first.click()
    expect(page.locator("#entry-notes .editing")).to_be_visible()
    found["editing"] = serious(page)
    page.locator("#cancel-edit").click()
    expect(page.locator("#entry-notes .editing")).to_have_count(0)
    pipeline.gate.clear()
    ask(page, "Write area.")
    expect(page.locator("#chat .bot-row").last).to_contain_text("def area")
    found["writing"] = serious(page)
    pipeline.gate.set()
    expect(page.locator("#chat .figures")).to_have_count(3)
    page.locator("#settings .toggle-button").click()
    expect(page.locator("#settings.open")).to_have_count(1)
    found["settings"] = serious(page)
    page.locator("#settings .toggle-button").click()
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.locator("#lanes .verdict")).to_be_visible()
    found["race"] = serious(page)
    page.get_by_role("tab", name="Drafting").click()
    expect(page.locator("#insight table").first).to_be_visible()
    found["drafting"] = serious(page)
    assert {state: those for state, those in found.items() if those} == {}


@pytest.mark.slow
def test_closed_side_bars_hold_no_stop_and_their_handles_say_what_they_open(open_page) -> None:
    page = open_page((900, 900))
    rests(page)
    for name in ("Conversations", "Settings"):
        handle = page.get_by_role("button", name=name, exact=True)
        expect(handle).to_have_attribute("aria-expanded", "false")
    stops = []
    page.locator("body").click(position={"x": 450, "y": 5})
    for _ in range(40):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("!!document.activeElement.closest('.sidebar-content')"))
    assert not any(stops)
    page.get_by_role("button", name="Settings", exact=True).click()
    expect(page.get_by_role("button", name="Settings", exact=True)).to_have_attribute("aria-expanded", "true")
    expect(page.locator("#system textarea")).to_be_editable()


@pytest.mark.slow
def test_keys_that_come_before_the_next_frame_go_through_the_modes_too(open_page) -> None:
    page = open_page()
    page.evaluate("window.requestAnimationFrame = () => 0")
    page.locator("#mode input:checked").focus()
    for said in ("Plain", "Prompt lookup"):
        page.keyboard.press("ArrowRight")
        expect(page.locator("#mode label.selected")).to_have_text(said)
    page.keyboard.press("Tab")
    assert page.evaluate("!document.activeElement.closest('#mode')")


@pytest.mark.slow
def test_the_modes_are_one_stop_and_arrows_go_through_them(open_page, pipeline) -> None:
    page = open_page()
    page.locator("#mode input:checked").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#mode label.selected")).to_have_text("Plain")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#mode label.selected")).to_have_text("Prompt lookup")
    page.keyboard.press("Tab")
    assert page.evaluate("!document.activeElement.closest('#mode')")
    answered(page, "Write area.")
    assert pipeline.requests[-1][1]["mode"] == "lookup"


@pytest.mark.slow
def test_what_vanishes_hands_the_focus_on(open_page, pipeline) -> None:
    page = open_page()
    rests(page)

    def lands(where: str) -> None:
        page.wait_for_function("where => document.activeElement.matches(where)", arg=where, timeout=15_000)

    page.locator("#chat .example").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#chat .figures")).to_have_count(1)
    lands("#prompt textarea")
    page.locator("#chat .action-receipt").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#chat .receipt.same")).to_be_visible()
    lands("#chat .action-receipt")
    page.get_by_role("button", name="Retry").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#chat .branches")).to_have_text("‹2/2›")
    lands("#prompt textarea, #chat button")
    page.locator("#delete").focus()
    page.keyboard.press("Enter")
    lands("#keep")
    page.locator("#sure").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#chat .user-row")).to_have_count(0)
    lands("#new")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("#preset input").fill("brief")
    page.locator("#preset input").press("Enter")
    page.get_by_role("button", name="Save preset").click()
    expect(page.get_by_text("Saved as “brief”.")).to_be_visible()
    page.locator("#preset-delete").focus()
    page.keyboard.press("Enter")
    lands("#preset-keep")
    page.keyboard.press("Enter")
    lands("#preset-delete")


@pytest.mark.slow
def test_messages_are_named_and_not_by_their_markup(open_page) -> None:
    page = open_page()
    page.locator("#listing label").click()
    expect(page.get_by_role("group", name="Prompt", exact=True)).to_have_count(2)
    expect(page.get_by_role("group", name="Answer", exact=True)).to_have_count(2)
    assert page.locator("[aria-label*='<']").count() == 0


@pytest.mark.slow
def test_the_page_says_which_language_it_is_in(open_page) -> None:
    page = open_page(locale="de-DE")  # which none of its words are in
    page.wait_for_function("document.documentElement.lang === 'en'")
