"""Switching the model without a restart, and the language, as someone sees them who uses the page."""

from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from outrider.app.chat.assistant import State
from outrider.app.chat.core.user_message import UserMessage
from outrider.app.chat.i18n.translations import CATALOGUES, Words
from outrider.app.chat.ui.rendering import notice_html, status_html
from outrider.pipelines import BrokenPair, PromptTooLong

from ...browser import WIDE, answered, ask, opened
from ..scripted import Refused, ScriptedPipeline

expect.set_options(timeout=60_000)


@pytest.fixture
def folder(tmp_path: Path, embedded_pair: Path) -> Path:
    """Two pairs and one that cannot work."""
    for name in ("good", "refused"):
        shutil.copytree(embedded_pair, tmp_path / "pairs" / name, copy_function=os.link)
    (tmp_path / "pairs" / "broken").mkdir()
    return tmp_path / "pairs"


@pytest.fixture
def other() -> ScriptedPipeline:
    other = ScriptedPipeline()
    other.modes, other.max_context = ("off", "lookup", "suffix", "auto"), 256
    other.gate.set()
    return other


@pytest.fixture
def page(serve, pipeline, open_context, folder: Path, other: ScriptedPipeline) -> Page:
    """The page with the settings open; "good" loads as `other`, and "refused" not at all."""
    loaded = threading.Event()

    def open_pair(path: Path, device: str) -> ScriptedPipeline:
        if path.name == "refused":
            raise Refused("its <vocabulary> is another")
        assert (path, device) == (folder / "good", "CPU")
        loaded.wait(30)
        return other

    pipeline.warm.set()
    pipeline.gate.set()
    page = opened(serve(pipeline, "first", open_pair), open_context(), WIDE)
    page.locator("#settings .toggle-button").click()
    page.loaded = loaded
    return page


def load(page: Page, name: str) -> None:
    page.locator("#pair input").click()
    page.get_by_role("option", name=name, exact=True).click()
    page.locator("#load").click()


@pytest.mark.slow
def test_another_pair_is_loaded_while_the_first_answers(page, pipeline, other) -> None:
    second = opened(page.url, page.context, WIDE)
    load(page, "good")
    expect(page.locator("#status")).to_contain_text("first ready; loading good on CPU")
    answered(page, "Write area.")
    assert len(pipeline.requests) == 1
    page.loaded.set()
    expect(page.locator("#status")).to_contain_text("first ready; warming up good on CPU")
    other.warm.set()
    expect(page.locator("#status")).to_contain_text("good ready")
    expect(page.locator("#mode label")).to_have_text(["Automatic", "Plain", "Prompt lookup", "Text index"])
    expect(page.locator("#settings").get_by_label("number input for Max answer tokens")).to_have_value("256")
    expect(page.locator("#meter")).to_contain_text("of 256 tokens")
    answered(page, "Now rename it.", 2)
    assert (len(pipeline.requests), len(other.requests)) == (1, 1)
    expect(second.locator("#mode label")).to_have_count(4)  # another window follows


@pytest.mark.slow
def test_a_pair_that_cannot_work_is_listed_with_the_reason(page, pipeline) -> None:
    expect(page.locator("#unusable")).to_contain_text(re.compile("broken: .*is not a pair, since it has neither"))
    load(page, "refused")
    expect(page.locator("#status")).to_contain_text("refused could not be loaded on CPU: its <vocabulary> is another")
    expect(page.locator("#unusable")).to_contain_text("refused (CPU): its <vocabulary> is another")
    answered(page, "Write area.")
    assert len(pipeline.requests) == 1


def test_one_pair_is_loaded_at_a_time(page) -> None:
    load(page, "good")
    expect(page.locator("#status")).to_contain_text("loading good")
    page.locator("#load").click()
    expect(page.get_by_text("good is still being loaded: wait for it.")).to_be_visible()
    page.loaded.set()


@pytest.mark.slow
def test_the_page_speaks_the_language_of_the_browser(serve, pipeline, open_context) -> None:
    pipeline.warm.set()
    pipeline.gate.set()
    page = opened(serve(pipeline), open_context(locale="zh-CN"), WIDE, said="就绪")
    expect(page.locator("#send")).to_have_text("发送")
    expect(page.locator("#mode label")).to_have_text(["自动", "普通", "提示查找", "文本索引", "草稿模型", "串联"])
    expect(page.locator("#chat .placeholder")).to_have_text("请提出问题，或试试下面的例子。")
    expect(page.locator("#prompt textarea")).to_have_attribute("placeholder", "请输入要做的修改")
    expect(page.locator("#chat .example").first).to_have_text("重命名变量")
    expect(page.locator("#import")).to_have_text("导入")
    answered(page, "Write area.")
    expect(page.locator("#chat .figures")).to_contain_text("1,234 个词元")
    expect(page.locator("#chat .action-edit")).to_have_text("编辑")
    seen = page.locator("body").inner_text()
    english = [text for key, text in CATALOGUES["en"].items() if text in seen and text != CATALOGUES["zh"][key]]
    assert [text for text in english if len(text) > 3] == []
    page.locator("#preset-buttons button").first.dispatch_event("click")  # the panel is closed
    expect(page.locator("[data-testid=toast-text]")).to_have_text(CATALOGUES["zh"]["no_preset_name"])
    expect(page.locator(".toast-title")).to_have_css("font-size", "0px")
    page.get_by_role("button", name="关闭", exact=True).click()
    pipeline.refusal = PromptTooLong("The prompt has 9,999 tokens & <more>.")
    ask(page, "Far too long.")
    expect(page.locator("[data-testid=toast-text]")).to_have_text(
        "提示太长，模型的上下文放不下：请缩短提示，或少附一些文件。（The prompt has 9,999 tokens & <more>.）"
    )


@pytest.mark.slow
def test_no_button_speaks_a_language_that_the_page_does_not(serve, pipeline, open_context) -> None:
    pipeline.warm.set()
    pipeline.gate.set()
    page = opened(serve(pipeline), open_context(locale="de-DE"), WIDE)
    answered(page, "Write area.")
    for name in ("Retry", "Undo"):
        expect(page.locator("#chat .icon-button-wrapper").get_by_role("button", name=name)).to_be_visible()


def test_words_are_found_for_the_kind_of_a_reason_and_its_own_message_stands_behind_them() -> None:
    damaged = UserMessage("The history file was damaged.", "HistoryDamaged")
    assert Words("zh").error(damaged).endswith("（The history file was damaged.）")
    assert "对话记录文件已损坏" in notice_html(damaged, Words("zh"))
    assert Words("en").error(damaged) == damaged
    values = {"pair": "a", "device": "CPU", "reason": UserMessage.of(BrokenPair("No <x>."))}
    status = status_html("b", State("refused", "state_refused", values), Words("zh"))
    assert "缺少文件或已损坏：请重新下载或导出。（No &lt;x&gt;.）" in status
    unknown = UserMessage.of(ValueError("Nobody foresaw this."))
    assert Words("zh").error(unknown) == CATALOGUES["zh"]["failed"]
