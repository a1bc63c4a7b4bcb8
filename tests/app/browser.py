"""A headless browser whose caches stay warm from test to test, and what every test does with a page."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from .chat.scripted import ScriptedPipeline

PATIENCE_MS = 60_000  # for a slow machine that has other work
# The first has no window, and takes a fifth less of the processor for that.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",  # a page finds the scripts compiled that another one of its context has run
    "--js-flags=--single-threaded-gc",
]
# What stays when someone presses "New" and puts the controls back that can be seen.
LASTING = """
() => JSON.stringify([
  ...[...document.querySelectorAll("#search input, #settings input, #settings textarea, #race-prompt textarea")]
    .map(each => [each.value, each.checked]),
  ...[...document.querySelectorAll("#unusable, #notice, #race-entry, #lanes")].map(each => each.textContent),
])
"""
# All that a window shows and holds, but for the list of conversations.
STATE = f"""
() => JSON.stringify([
  ({LASTING})(), document.title, location.href, document.body.className, document.activeElement.closest("[id]").id,
  ...[...document.querySelectorAll("#chats-heading, #chat-buttons, #masthead, #notice, #settings, #tabs")]
    .map(each => each.innerText),
  document.querySelectorAll("dialog, [role=listbox], .toast-body").length,
  ...[...document.querySelectorAll("#chats, #settings, [role=tab]")].map(each => [each.className, each.ariaSelected]),
  ...[...document.querySelectorAll("input:not([type=file], #listing input), textarea")]
    .map(each => [each.checked || each.value, each.readOnly]),
])
"""
PUT_BACK = """
() => [
  ...document.querySelectorAll(".toast-close, #settings.open .toggle-button"), document.querySelector("[role=tab]"),
  ...[...document.querySelectorAll("#mode label:first-child input, #coloured input")].filter(each => !each.checked),
].forEach(each => each.click())
"""
IS_AS_IT_WAS = f"""
([state, titles]) => ({STATE})() === state &&
  JSON.stringify([...document.querySelectorAll("#listing label")].map(each => each.innerText.trim())) === titles
"""
WIDE = (1400, 900)  # has room for the list of conversations

# Nothing moves, and in five frames in a row everything is where it was. The bar of a toast that counts down to its end
# is left out: who waited for it would see the toast no more.
RESTS = """
() => {
  const moves = document.getAnimations().some(
    (each) => each.playState === "running" && Number.isFinite(each.effect.getComputedTiming().endTime)
      && !each.effect.target.matches(".toast-body .timer"));
  const places = [...document.body.querySelectorAll(":not(.toast-body .timer)")].map((each) => {
    const box = each.getBoundingClientRect();
    return [box.x, box.y, box.width, box.height];
  }).join();
  const same = !moves && window.placesAtRest === places;
  window.framesAtRest = same ? (window.framesAtRest ?? 0) + 1 : 0;
  window.placesAtRest = places;
  return window.framesAtRest >= 5 && !(window.framesAtRest = 0);
}
"""


@contextmanager
def started_browser() -> Iterator[Browser]:
    """An installed Chromium, or the one that Playwright has downloaded."""
    installed = map(shutil.which, BROWSERS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=next(filter(None, installed), None), args=FLAGS)
        yield browser
        browser.close()


class Port:
    """An address of this machine that one server after another listens at, so that what is cached of it is used."""

    def __init__(self) -> None:
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.number = int(self._holder.getsockname()[1])
        if sys.platform != "linux":  # elsewhere nobody could listen at what is held
            self.close()

    def is_free(self) -> bool:
        """Whether nobody listens, such as the server of a test that failed before it could be closed."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.number))
            except OSError:
                return False
            return True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.number}"

    def close(self) -> None:
        self._holder.close()


@dataclass(frozen=True, slots=True)
class Profile:
    """A browser context that tests take turns with. Its first page stays open, and with it the process of all pages."""

    context: BrowserContext
    first: Page

    @classmethod
    def of(cls, browser: Browser, options: dict[str, Any]) -> Profile:
        context = browser.new_context(**{"reduced_motion": "reduce", **options})  # what moves is drawn again and again
        context.set_default_timeout(PATIENCE_MS)
        first = context.new_page()
        first.route("**", lambda route: route.fulfill(body="", content_type="text/html"))
        first.goto("http://127.0.0.1")
        return cls(context, first)

    def close_all_but(self, kept: Page | None = None) -> None:
        """Close the pages of a test."""
        for page in self.context.pages:
            if page not in (self.first, kept):
                page.close()

    def clear(self) -> None:
        """Close the pages of a test, and forget what they kept; scripts and styles stay in the cache."""
        self.close_all_but()
        self.context.clear_cookies()
        session = self.context.new_cdp_session(self.first)
        session.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
        session.detach()


class Profiles:
    """Contexts by their options. Two that are taken at the same time are never the same."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: defaultdict[str, list[Profile]] = defaultdict(list)

    def take(self, options: dict[str, Any]) -> Profile:
        free = self._free[repr(sorted(options.items()))]
        return free.pop() if free else Profile.of(self._browser, options)

    @contextmanager
    def one(self, options: dict[str, Any]) -> Iterator[BrowserContext]:
        profile = self.take(options)
        yield profile.context
        profile.clear()
        self._free[repr(sorted(options.items()))].append(profile)


class KeptPage:
    """A page that one test after the other has, as long as "New" and a few clicks make it what it was at first.

    What a test changes in addition, such as a setting, costs the next one the time to open the page anew.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._page: Page | None = None
        self._state = self._lasting = ""

    def at(self, address: str, titles: list[str], size: tuple[int, int] | None, scheme: Any) -> Page:
        """`titles` are those of the conversations that there are by now."""
        page = self._page
        if page is None or not page.url.startswith(address) or not self._is_as_it_was(page, titles):
            self._profile.clear()
            self._page = opened(address, self._profile.context, size, scheme)
            rests(self._page)
            self._state, self._lasting = self._page.evaluate(STATE), self._page.evaluate(LASTING)
        return self._page

    def leave(self) -> None:
        """Close the other windows of a test."""
        self._profile.close_all_but(self._page)

    def _is_as_it_was(self, page: Page, titles: list[str]) -> bool:
        if page.is_closed() or page.evaluate(LASTING) != self._lasting:
            return False
        page.evaluate(PUT_BACK)
        page.locator("#prompt textarea").fill("")
        page.locator("#new").dispatch_event("click")  # the list may be closed in this window
        page.locator("#prompt textarea").focus()
        try:
            page.wait_for_function(IS_AS_IT_WAS, arg=[self._state, json.dumps(titles)], timeout=5000, polling=100)
        except PlaywrightTimeout:
            return False
        return True


def opened(
    address: str, context: BrowserContext, size: tuple[int, int] | None = None, scheme: Any = None, said: str = "ready"
) -> Page:
    """The page in a window of this size and scheme, once its status says this and all that it asked for is there.

    What comes later would draw over what a test does.
    """
    page = context.new_page()
    waiting: set[Request] = set()
    page.on("request", lambda request: waiting.add(request))  # Playwright takes no built-in method
    for end in ("requestfinished", "requestfailed"):
        page.on(end, lambda request: waiting.discard(request))
    if size is not None:
        page.set_viewport_size({"width": size[0], "height": size[1]})
    if scheme is not None:
        page.emulate_media(color_scheme=scheme)
    page.goto(address)
    expect(page.locator("#status")).to_contain_text(said, timeout=PATIENCE_MS)
    eventually(page, lambda: all("/heartbeat/" in request.url for request in waiting))
    return page


def rests(page: Page) -> None:
    """What slides, fades or is laid out anew has come to rest."""
    page.wait_for_function(RESTS)


def ask(page: Page, prompt: str) -> None:
    page.locator("#prompt textarea").fill(prompt)
    page.locator("#send").click()


def answered(page: Page, prompt: str, count: int = 1) -> None:
    ask(page, prompt)
    expect(page.locator("#chat .figures")).to_have_count(count)
    expect(page.locator("#send")).to_be_visible()


def finish(page: Page, pipeline: ScriptedPipeline, count: int) -> None:
    """Let the answer that is being written, the `count`-th of the chat, come to its end."""
    pipeline.gate.set()
    expect(page.locator("#chat .figures")).to_have_count(count)
    expect(page.locator("#send")).to_be_visible()
    pipeline.gate.clear()


def answers(page: Page) -> Locator:
    return page.locator("#chat .bot-row")


def listed(page: Page) -> Locator:
    return page.locator("#listing label")


def fits(page: Page, parts: str, below: bool = False) -> None:
    """Nothing of these sticks out of the window at a side, or below, once what moves has come to rest."""
    page.wait_for_function(
        """([parts, below]) => ![...document.querySelectorAll(parts)].map(part => part.getBoundingClientRect()).some(
             box => box.width && (box.left < -1 || box.right > innerWidth + 1 || below && box.bottom > innerHeight + 1)
           ) && document.documentElement.scrollWidth <= innerWidth""",
        arg=[parts, below],
    )


def eventually(page: Page, holds: Callable[[], bool]) -> None:
    """What the page shows nothing of."""
    for _ in range(600):
        if holds():
            return
        page.wait_for_timeout(100)
    pytest.fail("It has not come about in a minute.")


def serious(page: Page) -> list[str]:
    """What axe finds as the page is, and of contrasts in the other colour scheme."""
    found = _violations(page)
    page.evaluate("document.body.classList.toggle('dark')")
    found += _violations(page, runOnly=["color-contrast"])
    page.evaluate("document.body.classList.toggle('dark')")
    return found


def _violations(page: Page, **options: Any) -> list[str]:
    rests(page)  # what fades in has another contrast
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)  # `Axe.run` would do that again each time
    run = "options => axe.run({resultTypes: ['violations'], ...options}).then(found => found.violations)"
    found = page.evaluate(run, options)
    return [
        f"{each['id']}: {node['html'][:150]} {node['any'][:1] and node['any'][0]['message']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
