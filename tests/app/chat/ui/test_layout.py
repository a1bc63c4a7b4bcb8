"""What must be seen and reached in windows of every size, however many conversations there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from outrider.app.chat.core.conversation import Turn
from outrider.app.chat.store.history import History
from outrider.pipelines import Span

from ...browser import ask, opened, rests
from ..scripted import ScriptedPipeline

expect.set_options(timeout=30_000)

SIZES = {
    "desktop": (1360, 900),
    "768 high": (1360, 768),
    "tablet": (820, 1180),
    "phone": (390, 844),
    "320 wide": (320, 640),
    "landscape phone": (844, 390),
    "200% zoom": (680, 450),
}

# Of each control that is shown: it has a size, lies within the window once it is scrolled to, and nothing covers it.
OUT_OF_REACH = """
(parts) => [...document.querySelectorAll(parts)].filter(part => {
  if (!part.checkVisibility({visibilityProperty: true}) || part.closest("[inert]")) return false;
  part.scrollIntoView({block: "nearest", inline: "nearest"});
  const box = part.getBoundingClientRect();
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  const seen = document.elementFromPoint(x, y);
  const inside = box.left >= -1 && box.right <= innerWidth + 1 && box.top >= -1 && box.bottom <= innerHeight + 1;
  return box.width < 8 || box.height < 8 || !inside || !seen || !(part.contains(seen) || seen.contains(part));
}).map(part => part.id || part.className || part.outerHTML.slice(0, 80))
"""
CONTROLS = "#masthead h1, #status [role=status], .toggle-button, [role=tab], #mode label, #coloured, #legend, #prompt "
CONTROLS += "textarea, #send, #attach, #meter, #small-print, #chat .example"
IN_LIST = "#chats .toggle-button, #new, #search input, #listing label, #chat-title input, #chat-buttons > button"


@pytest.fixture
def open_with(
    serve: Callable[..., str], pipeline: ScriptedPipeline, open_context: Callable[..., object], history_path: Path
) -> Callable[..., Page]:
    """Opens the page in a window of a size, with as many conversations."""

    def open_with(size: tuple[int, int], conversations: int, name: str = "scripted") -> Page:
        history = History(history_path)
        for number in range(conversations):
            chat = history.add_chat(f"Conversation {number} with a title that is long enough to be cut")
            spans = (Span("def area(width_, height_):\n    return width_ * height_\n" * 12, "prompt_lookup"),)
            history.add_turn(chat, None, Turn("Write area.", spans=spans, finish_reason="stop", token_ids=(1,)))
        history.close()
        pipeline.warm.set()
        pipeline.gate.set()
        return opened(serve(pipeline, name), open_context(), size)

    return open_with


def open_list(page: Page) -> None:
    rests(page)  # a wide window opens it itself
    if page.locator("#chats.open").count() == 0:
        page.locator("#chats .toggle-button").click()
    expect(page.locator("#chats.open")).to_have_count(1)
    rests(page)  # it slides


def resized(page: Page, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    rests(page)


@pytest.mark.slow
@pytest.mark.parametrize("conversations", [0, 20, 200])
def test_the_list_scrolls_and_all_beside_it_stays_in_reach(open_with, conversations) -> None:
    page = open_with(SIZES["desktop"], conversations)
    expect(page.locator("#listing label")).to_have_count(conversations)
    open_list(page)
    for name, size in SIZES.items():
        resized(page, size)
        assert page.evaluate(OUT_OF_REACH, IN_LIST) == [], name
        room = page.locator("#listing").bounding_box()
        assert room is not None
        assert room["height"] >= 80, name
        if size[1] >= 600:  # a low panel scrolls as a whole
            for part in ("#new", "#search", "#chat-title", "#delete", "#import"):
                box = page.locator(part).bounding_box()
                assert box is not None
                assert box["y"] >= 0, (name, part)
                assert box["y"] + box["height"] <= size[1], (name, part)


@pytest.mark.slow
def test_every_control_can_be_reached(open_with) -> None:
    page = open_with(SIZES["phone"], 1, "a-pair-with-a-very-long-name-indeed-it-goes-on-and-on")
    for name, size in SIZES.items():
        resized(page, size)
        assert page.evaluate(OUT_OF_REACH, CONTROLS) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


@pytest.mark.slow
def test_the_conversation_keeps_room_and_its_buttons_are_in_reach(open_with) -> None:
    page = open_with(SIZES["phone"], 1)
    open_list(page)
    page.locator("#listing label").click()
    expect(page.locator("#chat .figures")).to_have_count(1)
    expect(page.locator("#chats.open")).to_have_count(0)  # it would cover what was chosen
    rests(page)
    page.locator("#chat .action-edit").click()
    expect(page.locator("#entry-notes .editing")).to_be_visible()
    for name, size in SIZES.items():
        resized(page, size)
        box = page.locator("#chat [role=log]").bounding_box()
        assert box is not None
        assert box["height"] >= 200, name
        parts = "#chat .message-button, #chat .icon-button-wrapper:not(.top-panel) button, #cancel-edit, #send, #prompt"
        assert page.evaluate(OUT_OF_REACH, parts) == [], name


@pytest.mark.slow
def test_a_phone_shows_the_new_conversation_that_was_asked_for(open_with) -> None:
    page = open_with(SIZES["phone"], 1)
    open_list(page)
    page.locator("#new").click()
    expect(page.locator("#chats.open")).to_have_count(0)


@pytest.mark.slow
def test_an_underscore_is_not_hidden_by_the_line_of_its_colour(open_with) -> None:
    page = open_with(SIZES["desktop"], 1)
    page.locator("#listing label").click()
    page.locator("#chat .from-prompt_lookup").first.wait_for()
    for name in ("prompt_lookup", "suffix", "earlier_turn", "draft_model", "grammar", "reference"):
        style = page.locator("#chat pre.answer span").first.evaluate(
            """(mark, name) => {
                 mark.className = "from-" + name;
                 const style = getComputedStyle(mark);
                 return [style.boxShadow, style.backgroundImage, parseFloat(style.paddingBottom)];
               }""",
            name,
        )
        assert "inset" not in style[0], "a line within the box lies upon descenders"
        assert style[1] == "none"
        assert style[2] >= 2


@pytest.mark.slow
def test_tables_lists_and_quotes_of_an_answer_can_be_read(serve, pipeline, open_context, history_path) -> None:
    table = f"|{'column|' * 20}\n|{'-|' * 20}\n|{'value|' * 20}"
    arabic = "- بند\n\n  ```\n  x\n  ```\n\n> اقتباس\n\n|أ|ب|\n|-|-|\n|١|٢|\n"
    answer = f"{table}\n\n- one\n  - two\n\n> quote\n\nAnd:\n\n{arabic}"
    history = History(history_path)
    chat = history.add_chat("All kinds")
    history.add_turn(chat, None, Turn("Go on.", spans=(Span(answer, "target"),), finish_reason="stop", token_ids=(1,)))
    history.close()
    pipeline.warm.set()
    page = opened(serve(pipeline), open_context(), SIZES["desktop"])
    page.locator("#coloured input").click()
    page.locator("#listing label").click()
    wide = page.locator("#chat .wide").first
    assert wide.evaluate("each => each.scrollWidth > each.clientWidth"), "it scrolls by itself"
    log = page.locator("#chat [role=log]")
    assert log.evaluate("each => each.scrollWidth <= each.clientWidth"), "and the conversation stays where it is"
    assert wide.locator("td").first.evaluate("each => each.getBoundingClientRect().height") < 60, "a word is not broken"
    expect(wide).to_have_attribute("tabindex", "0")
    sizes = page.locator("#chat li").evaluate_all("all => all.map(each => getComputedStyle(each).fontSize)")
    assert len(set(sizes)) == 1, "what is nested is no smaller"
    directions = "all => all.map(each => getComputedStyle(each).direction)"
    assert page.locator("#chat .answer-text > ul").evaluate_all(directions) == ["ltr", "rtl"]
    assert page.locator("#chat blockquote").evaluate_all(directions) == ["ltr", "rtl"]
    assert page.locator("#chat table").evaluate_all(directions) == ["ltr", "rtl"]
    assert page.locator("#chat pre").evaluate_all(directions) == ["ltr"], "code runs from left to right"


@pytest.mark.slow
def test_who_scrolls_up_while_an_answer_grows_stays_there(open_with, pipeline, monkeypatch) -> None:
    from .. import scripted

    monkeypatch.setattr(scripted, "BEGINNING", "line\n" * 200)
    page = open_with(SIZES["desktop"], 0)
    pipeline.gate.clear()
    ask(page, "Write much.")
    log = page.locator("#chat [role=log]")
    rest = "log => log.scrollHeight - log.clientHeight - log.scrollTop"
    expect(page.locator("#chat pre.answer")).to_contain_text("line")
    page.wait_for_timeout(600)
    assert log.evaluate(rest) < 8, "what grows is followed"
    log.hover()
    page.mouse.wheel(0, -60)
    page.wait_for_timeout(300)
    pipeline.gate.set()
    expect(page.locator("#chat .figures")).to_have_count(1)
    page.wait_for_timeout(600)
    assert log.evaluate(rest) > 50, "and not pulled back"
    ask(page, "And more.")
    expect(page.locator("#chat .figures")).to_have_count(2)
    page.wait_for_timeout(600)
    assert log.evaluate(rest) < 8, "a new prompt is gone to"


@pytest.mark.slow
@pytest.mark.parametrize("size", ["phone", "320 wide", "landscape phone"])
def test_a_greeting_that_has_no_room_can_be_read_from_its_first_line(open_with: Callable[..., Page], size: str) -> None:
    page = open_with(SIZES[size], 0)
    rests(page)
    cut_off = page.locator("#chat .placeholder").evaluate(
        """(greeting) => {
          let box = greeting.parentElement;
          while (getComputedStyle(box).overflowY !== "auto") box = box.parentElement;
          box.scrollTop = 0;
          return box.getBoundingClientRect().top - greeting.getBoundingClientRect().top;
        }"""
    )
    assert cut_off <= 0
