"""Text that would be more than text: in answers, prompts, titles, file names and imports, none of it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, expect

from outrider.app.chat.core.conversation import File, Turn
from outrider.app.chat.store.history import History, Node
from outrider.app.chat.store.transfer import exchange_of, to_json
from outrider.pipelines import Span

from ..browser import WIDE
from ..chat import scripted
from ..chat.scripted import ScriptedPipeline

expect.set_options(timeout=15_000)

ELSEWHERE = "http://elsewhere.example"
RUN = "document.documentElement.dataset.run=1"
REPLAY = "message-button action-receipt turn-1"  # the classes of a button of the page
HOSTILE = "\n\n".join(
    (
        f'<img src=x onerror="{RUN}">',
        f"![a picture]({ELSEWHERE}/markdown.png)",
        f'<img src="{ELSEWHERE}/html.png">',
        f"<style>@import url({ELSEWHERE}/sheet.css); #composer {{ display: none }}</style>",
        f'<form action="{ELSEWHERE}/form"><input name=secret autofocus><button>Go on</button></form>',
        '<button class="message-button action-copy_answer turn-1">Forged</button>',
        f'<div class="message-button-row"><button type="button" class="{REPLAY}">Receipt</button></div>',
        f"[run](javascript:{RUN}) [data](data:text/html,<script>{RUN}</script>) [here](/logout)",
        f'<a href="javascript:{RUN}">run</a><svg onload="{RUN}"><iframe src="{ELSEWHERE}/frame"></iframe>',
        f"<script>{RUN}</script><link rel=stylesheet href={ELSEWHERE}/link.css><video src={ELSEWHERE}/v></video>",
        f"```{REPLAY}\n</code></pre><button class='{REPLAY}'>Receipt</button>\n```",
        "```mermaid\ngraph TD; A-->B\n```",
        "&lt;img src=x&gt; &#60;button&#62;",
    )
)
TAGS = "img, style, form, input, script, link, iframe, video, svg, object, embed, base, meta"


@pytest.fixture
def requests() -> list[str]:
    return []


@pytest.fixture
def history(history_path: Path) -> History:
    return History(history_path)


@pytest.fixture
def open_page(
    open_kept: Callable[..., Page], pipeline: ScriptedPipeline, requests: list[str]
) -> Iterator[Callable[[], Page]]:
    """Opens the page, after which every address that is asked for is noted."""
    pages: list[Page] = []

    def note(request: Request) -> None:
        if "elsewhere.example" in request.url:
            requests.append(request.url)

    def open_page() -> Page:
        pipeline.warm.set()
        pipeline.gate.set()
        pages.append(page := open_kept(pipeline, WIDE, permissions=["clipboard-read", "clipboard-write"]))
        page.context.on("request", note)
        return page

    yield open_page
    for page in pages:
        page.context.remove_listener("request", note)


def hostile_turn() -> Turn:
    name = f'"><img src={ELSEWHERE}/name.png onerror="{RUN}">.txt'
    spans = (Span(HOSTILE[:100], "target"), Span(HOSTILE[100:], "suffix"))
    return Turn(HOSTILE, files=(File(name, HOSTILE),), spans=spans, finish_reason="stop", token_ids=(1, 2))


def is_inert(page: Page, requests: list[str]) -> None:
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.dataset.run") is None
    assert requests == []
    assert page.locator("#chat .message-content").locator(TAGS).count() == 0
    buttons = page.locator("#chat .message-content button").evaluate_all("all => all.map(each => each.className)")
    actions = sorted(name.split()[1] for name in buttons)
    own = ["action-copy_answer", "action-copy_prompt", "action-edit", "action-receipt"]
    assert actions == own, "those of the page, none forged"
    expect(page.locator("#composer")).to_be_visible()


@pytest.mark.parametrize("coloured", [True, False], ids=["coloured", "rendered"])
def test_a_hostile_turn_runs_nothing_loads_nothing_and_forges_no_button(open_page, history, requests, coloured) -> None:
    chat = history.add_chat("A chat")
    history.add_turn(chat, None, hostile_turn())
    page = open_page()
    if not coloured:
        page.locator("#coloured input").uncheck()
    page.locator("#listing label").click()
    expect(page.locator("#chat .bot-row")).to_contain_text("Forged")
    is_inert(page, requests)
    for shown in ("<form action=", "</code></pre><button", "[run](javascript:"):
        expect(page.locator("#chat .bot-row")).to_contain_text(shown)
    page.locator("#chat .action-copy_answer").click()
    page.wait_for_function("text => navigator.clipboard.readText().then(read => read === text)", arg=HOSTILE)


def test_a_hostile_answer_is_inert_while_it_is_written(open_page, pipeline, requests, monkeypatch) -> None:
    monkeypatch.setattr(scripted, "BEGINNING", HOSTILE)
    page = open_page()
    pipeline.gate.clear()
    page.locator("#coloured input").uncheck()
    page.locator("#prompt textarea").fill("Attack.")
    page.locator("#send").click()
    expect(page.locator("#chat .bot-row")).to_contain_text("Forged")
    assert page.locator("#chat .message-content button").count() == 0
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.dataset.run") is None
    assert requests == []


def test_a_link_opens_apart_and_says_where_it_leads(open_page, history) -> None:
    chat = history.add_chat("A chat")
    said = f"Read [the docs]({ELSEWHERE}/docs?a=1&b=2), or [log in](https://bank.example@elsewhere.example/)."
    spans = (Span(said, "target"),)
    history.add_turn(chat, None, Turn("Where?", spans=spans, finish_reason="stop"))
    page = open_page()
    page.locator("#coloured input").uncheck()
    page.locator("#listing label").click()
    link = page.locator("#chat .bot-row a").first
    for part in (link, page.locator("#chat .bot-row .address").first):  # characters that turn the text around end there
        styles = "each => [getComputedStyle(each).unicodeBidi, getComputedStyle(each).direction]"
        assert part.evaluate(styles) == ["isolate", "ltr"]
    expect(link).to_have_attribute("href", f"{ELSEWHERE}/docs?a=1&b=2")
    expect(link).to_have_attribute("target", "_blank")
    for word in ("noopener", "noreferrer"):
        assert word in str(link.get_attribute("rel"))
    expect(page.locator("#chat .bot-row")).to_contain_text(f"the docs ({ELSEWHERE}/docs?a=1&b=2)")
    expect(page.locator("#chat .bot-row")).to_contain_text("log in (https://bank.example@elsewhere.example/)")


def test_a_hostile_title_is_text_in_the_list_and_in_what_the_page_says(open_page, history, requests, tmp_path) -> None:
    title = f'<img src={ELSEWHERE}/title.png onerror="{RUN}"><button class="{REPLAY}">x</button>'
    exported = to_json(exchange_of(title, [Node(1, None, hostile_turn(), (1,))], 1))
    (tmp_path / "hostile.json").write_text(exported)
    page = open_page()
    page.locator("input[type=file]").first.set_input_files(tmp_path / "hostile.json")
    expect(page.locator(".toast-body")).to_contain_text("<img src=")
    expect(page.locator("#listing label")).to_have_text([title])
    expect(page.locator("#chat-title").locator("input, textarea")).to_have_value(title)
    is_inert(page, requests)
    assert page.locator("#chats, .toast-body").locator("img, .message-button").count() == 0


def test_an_import_cannot_name_a_class_of_its_own(open_page, requests, tmp_path) -> None:
    exported = json.loads(to_json(exchange_of("A chat", [Node(1, None, hostile_turn(), (1,))], 1)))
    exported["turns"][0]["spans"][0]["source"] = f"target {REPLAY}"
    (tmp_path / "hostile.json").write_text(json.dumps(exported))
    page = open_page()
    page.locator("input[type=file]").first.set_input_files(tmp_path / "hostile.json")
    expect(page.locator(".toast-body")).to_have_count(1)
    expect(page.locator("#listing label")).to_have_count(0)
    assert requests == []


def test_a_hostile_file_name_is_text_beside_the_prompt(open_page, requests, tmp_path) -> None:
    name = "<img src=x onerror=document.documentElement.dataset.run=1>.txt"
    (tmp_path / name).write_text("harmless")
    page = open_page()
    page.locator("#entry input[type=file]").set_input_files(tmp_path / name)
    expect(page.locator("#entry-notes .files")).to_be_visible()
    bidi = page.locator("#entry-notes .files span").evaluate("each => getComputedStyle(each).unicodeBidi")
    assert bidi == "isolate"
    assert page.locator("#entry-notes").locator(TAGS).count() == 0
    assert page.evaluate("document.documentElement.dataset.run") is None
    assert requests == []
