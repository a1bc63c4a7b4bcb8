"""The page with the pair that comes with Outrider, and with pairs that draft in other ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Request, expect

from outrider.app.chat.assistant import Assistant
from outrider.app.chat.launch import open_page
from outrider.app.chat.store.history import History
from outrider.app.chat.ui.examples import EXAMPLES
from outrider.pipelines import LLMPipeline
from outrider.pipelines.model.pair import name_of
from outrider.pipelines.speculation import runtime
from tests.drafting_pairs import WAYS, mode_of

from ...browser import Profiles
from ...conftest import free_port

expect.set_options(timeout=60_000)


@contextmanager
def served(pair: Path) -> Iterator[str]:
    """The address of a pair's page."""
    port = free_port()
    history = History(Path(":memory:"))
    assistant = Assistant(LLMPipeline(pair, exact=True), name_of(pair))
    page = open_page(assistant, history, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        page.assistant.close()
        page.blocks.close(verbose=False)


@pytest.fixture(scope="module")
def address(embedded_pair: Path) -> Iterator[str]:
    with served(embedded_pair) as address:
        yield address


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    """What the page asked for since it was opened."""
    return []


@pytest.fixture(scope="module")
def _page(address: str, profiles: Profiles, requests: list[Request]) -> Iterator[Page]:
    with profiles.one({}) as context:
        page = context.new_page()
        page.on("request", lambda request: requests.append(request))  # Playwright takes no built-in method
        page.goto(address)
        expect(page.locator("#status")).to_contain_text("ready")
        yield page


@pytest.fixture
def page(_page: Page) -> Page:
    """A new conversation."""
    _page.get_by_role("tab", name="Chat").click()
    _page.locator("#new").click()
    expect(_page.locator("#chat .example").first).to_be_visible()
    return _page


def answered(page: Page, mode: str, said: str = "") -> str:
    """The answer to the last example, asked anew in the given mode; under it the page says what it is told to."""
    page.locator("#mode").get_by_text(mode).click()
    page.locator("#chat .example").get_by_text(EXAMPLES[-1].title, exact=True).click()
    expect(page.locator("#chat .figures")).to_contain_text("tokens/s")
    expect(page.locator("#chat .figures")).to_contain_text(mode)
    expect(page.locator("#chat .figures")).to_contain_text(said)
    expect(page.locator("#send")).to_be_visible()
    text = page.locator("#chat pre.answer").inner_text()
    page.locator("#new").click()
    expect(page.locator("#chat .example").first).to_be_visible()
    return text


@pytest.mark.slow
def test_receipt_and_race_find_the_same_tokens(page: Page) -> None:
    page.locator("#mode").get_by_text("Automatic").click()
    page.locator("#chat .example").get_by_text(EXAMPLES[1].title, exact=True).click()
    expect(page.locator("#chat .figures")).to_contain_text("tokens/s")
    page.locator("#chat .action-receipt").click()
    expect(page.locator("#chat .receipt.same")).to_contain_text("Verified: identical")
    page.get_by_role("tab", name="Race").click()
    page.locator("#start").click()
    expect(page.locator("#lanes .verdict")).to_contain_text("Identical")
    first, second = page.locator("#lanes pre").all_inner_texts()
    assert first == second


def test_every_request_of_the_page_goes_to_its_own_host(page: Page, requests: list[Request], address: str) -> None:
    answered(page, "Prompt lookup")
    hosts = {urlsplit(request.url).netloc for request in requests if not request.url.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(address).netloc}


def set_up(page: Page) -> None:
    """Sample with a seed, and draft four tokens for each pass, whatever pays on this machine."""
    page.locator("#settings .toggle-button").click()
    settings = page.locator("#settings")
    for name, value in (("Temperature", "1"), ("Max answer tokens", "48"), ("Draft length (0 = automatic)", "4")):
        settings.get_by_label(f"number input for {name}").fill(value)
    settings.get_by_label("Seed").fill("7")


def assert_same_in(page: Page, *modes: str) -> str:
    """The text that plain decoding and other modes write, which draft."""
    plain = answered(page, "Plain")
    assert plain.strip()
    for mode in modes:
        assert answered(page, mode, "drafted tokens accepted") == plain
    return plain


def test_the_same_seed_gives_the_same_text_in_every_mode(page: Page) -> None:
    set_up(page)
    text = assert_same_in(
        page, "Prompt lookup", "Text index", "Recycling", "Draft model", "Head", "Chained", "Automatic"
    )
    page.locator("#settings").get_by_label("Seed").fill("8")
    assert answered(page, "Plain") != text


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_same_seed_gives_the_same_text_whatever_drafts(
    drafting_pairs: Path, profiles: Profiles, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(runtime, "PREPARED_S", 0.0)
    with served(drafting_pairs / way) as address, profiles.one({}) as context:
        page = context.new_page()
        page.goto(address)
        expect(page.locator("#status")).to_contain_text("ready")
        set_up(page)
        assert_same_in(page, {"head": "Head", "skip": "Fewer layers", "exit": "Early exit"}[mode_of(way)])
