"""What a person sees of an NPU: all of OpenVINO's code for it is real, except that its parts compute on the CPU."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from playwright.sync_api import expect
from rich.console import Console

from outrider.app.chat.ui.examples import EXAMPLES
from outrider.app.cli import doctor
from outrider.app.load_options import LoadOptions
from outrider.pipelines import LLMPipeline
from tests.on_npu import STAND_IN

from .commands import run
from .server.serving import MODEL, running

CODE = "def area(width, height):\n    return width * height\n"


@pytest.fixture(scope="module")
def pipeline(npu_draft_pair: Path) -> LLMPipeline:
    """With both models there."""
    return LLMPipeline(npu_draft_pair, "NPU", draft_device="NPU", **STAND_IN)


@pytest.mark.slow
def test_the_doctor_tells_that_eight_rows_cost_as_much_as_one(npu_pair: Path) -> None:
    console = Console(file=StringIO(), width=100)
    assert doctor.examine(npu_pair, console, load=LoadOptions("NPU", properties=STAND_IN))
    shown = console.file.getvalue()
    for finding in ("NPU (its code computes on CPU), f16", "1,152 tokens", "7 drafted", "draft model, one"):
        assert finding in shown, finding
    assert "8 drafted" not in shown


@pytest.mark.slow
def test_the_commands_put_the_draft_model_on_the_npu_and_the_doctor_tells_where_it_is_faster(
    npu_draft_pair: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    given = ["--draft-device", "NPU"]
    for name, value in STAND_IN.items():
        given += ["--property", f"{name}={value}"]
    options = ("--pair", npu_draft_pair, "--max-new-tokens", "24", "--json")
    done = run("generate", CODE, *options, *given)
    assert done.returncode == 0, done.stderr
    report = tmp_path / "report.md"
    done = run("doctor", npu_draft_pair, *given, "--report", report)
    assert done.returncode == 0, done.stderr
    for found in (done.stdout, report.read_text(encoding="utf-8")):
        assert "on NPU (its code computes on CPU)" in found
        assert "before release never on a real NPU" in found
        rows = re.findall(r"(CPU|NPU)(, the fastest)? +│ +([0-9.]+) │ +[0-9.]+ times", found)
        assert [device for device, _, _ in rows] == ["CPU", "NPU"]
        assert sum(bool(is_fastest) for _, is_fastest, _ in rows) == 1
    title = "# Outrider on CPU, with the draft model on NPU, where CPU stood in for an NPU\n"
    assert report.read_text(encoding="utf-8").startswith(title)


@pytest.mark.slow
def test_the_doctor_tells_why_a_draft_model_cannot_be_there(npu_pair: Path) -> None:
    console = Console(file=StringIO(), width=200)
    small = {**STAND_IN, "MAX_PROMPT_LEN": 64, "MIN_RESPONSE_LEN": 64}
    assert doctor.examine(npu_pair, console, load=LoadOptions("NPU", properties=small))
    assert re.search(r"NPU +│ +│ .*weights of type i8, and an NPU", console.file.getvalue())


def test_a_client_of_the_server_gets_the_same_text_in_every_mode(pipeline: LLMPipeline) -> None:
    with running(pipeline) as served, served.client() as client:
        texts = {
            client.completions.create(
                model=MODEL, prompt=CODE, max_tokens=24, temperature=0, extra_body={"speculation": mode}
            ).choices[0].text
            for mode in pipeline.modes
        }  # fmt: skip
    assert len(texts) == 1


def test_the_server_lists_as_context_what_the_npu_has_room_for(pipeline: LLMPipeline) -> None:
    with running(pipeline) as served:
        assert served.get(f"/v1/models/{MODEL}").json()["max_context"] == 1024 + 128 < pipeline.max_context


@pytest.mark.slow
def test_the_page_tells_the_device_and_answers_in_every_mode(pipeline: LLMPipeline, serve, open_context) -> None:
    page = open_context().new_page()
    page.goto(serve(pipeline, "npu"))
    expect(page.locator("#status")).to_contain_text("ready on NPU, draft model on NPU", timeout=60_000)
    promise = "changes the speed, never the text" if pipeline.exact else "can change the text"
    expect(page.locator("#small-print")).to_contain_text(promise)
    expect(page.locator("#mode label")).to_have_count(len(pipeline.modes))
    for mode in ("Plain", "Prompt lookup", "Text index", "Draft model", "Chained", "Automatic"):
        page.locator("#mode").get_by_text(mode, exact=True).click()
        page.locator("#chat .example").get_by_text(EXAMPLES[-1].title, exact=True).click()
        figures = page.locator("#chat .figures")
        expect(figures).to_contain_text(re.compile(f"^{mode}.*tokens/s"), timeout=60_000)
        if mode != "Draft model":  # which is measured, and need not pay with the CPU in the NPU's place
            expect(figures).to_contain_text("no drafting" if mode == "Plain" else "drafted tokens accepted")
        expect(page.locator("#send")).to_be_visible()
        page.locator("#new").click()
        expect(page.locator("#chat .example").first).to_be_visible()
