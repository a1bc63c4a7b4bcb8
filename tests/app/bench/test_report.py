"""The report pairs each mode with plain decoding, and table and page say what it says."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from outrider.app.bench.html_report import page
from outrider.app.bench.labels import LABELS
from outrider.app.bench.plots import COLOURS, FEWEST_JUDGED, depth
from outrider.app.bench.report import Report, entries, samples
from outrider.app.bench.spread import Spread
from outrider.app.bench.table import show
from outrider.app.bench.task import Task
from outrider.pipelines import MODES

from .traces import run

ABOUT = {
    "date": "2026-01-01 00:00 UTC",
    "machine": {"processor": "<CPU>", "logical_cores": 2, "system": "Linux"},
    "versions": {"outrider": "0"},
    "pair": "somewhere",
    "models": {"target": {"million_weights": 5.5, "weights": "int8"}},
}


def report(wrong: bool = False) -> Report:
    tasks = [Task("edit", ("a",)), Task("edit", ("b",)), Task("chat", ("c",))]
    results = [
        [run(task, "off", [1, 2, 3, 4], seconds=3.0), run(task, "auto", [1, 2, 3, 9 if wrong else 4], seconds=1.0 + i)]
        for i, task in enumerate(tasks)
    ]
    return Report(
        about=ABOUT,
        seed=7,
        exact=True,
        entries=tuple(entries(results, {(0, "auto"): 0.8, (1, "auto"): 0.9})),
        samples=tuple(samples(results, "auto")),
        pass_ms=((2, 5.0), (8, 7.5), (33, 20.0)),
        draft_ms={"draft_model": 1.5, "head": 0.4},
        begin_ms={"head": 2.5},
    )


def judged(**by_depth: list[tuple[int, int]]) -> Report:
    """The report with one entry, of whose drafts so much was judged and kept."""
    return replace(report(), entries=(replace(report().entries[1], by_depth=by_depth),))


def test_ratios_are_of_the_same_prompt() -> None:
    off, auto, *_ = report().entries
    assert (off.family, off.mode, auto.mode, auto.num_prompts) == ("edit", "off", "auto", 2)
    assert off.speedup == Spread(1, 1, 1, 2)
    assert auto.speedup == Spread(pytest.approx(2.25), pytest.approx(1.875), pytest.approx(2.625), 2)  # 3 and 1.5
    assert auto.tokens_per_s == Spread(pytest.approx(2.25), pytest.approx(1.875), pytest.approx(2.625), 2)
    assert auto.best_share == Spread(pytest.approx(0.85), pytest.approx(0.825), pytest.approx(0.875), 2)
    assert off.best_share is None
    assert auto.by_depth == {"suffix": [(2, 2), (2, 2)]}


def test_a_difference_is_counted_and_shown() -> None:
    assert report().num_differing == 0
    wrong = report(wrong=True)
    assert [entry.differing for entry in wrong.entries] == [0, 2, 0, 1]
    assert "DIFFERENT TEXT: edit, mode auto: 2 of 2 prompts" in shown(wrong)
    assert "Different text: edit, mode auto, 2 of 2 prompts" in page(wrong)
    lossless = replace(wrong, exact=False)
    assert all("--exact asks for it" in told(lossless) and "--exact" not in told(wrong) for told in (shown, page))
    assert "DIFFERENT" not in shown(report())
    assert "Different" not in page(report())


def test_the_table_fits_a_screen_of_80_columns_and_says_what_it_is_about() -> None:
    text = shown(report())
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for words in ("<CPU>", "weights int8", "seed 7", "edit, 2 prompts", "2.25 (1.88-2.62)"):
        assert words in text


def test_what_passes_and_drafted_tokens_cost_is_told() -> None:
    text = " ".join(shown(report()).split())
    assert (
        "Passes of 2, 8 rows take 5.0, 7.5 ms; a token takes the draft model 1.5 ms; a token takes the head 0.4 ms, "
        "and 2.5 ms to begin." in text
    )
    assert "Passes of" not in shown(replace(report(), pass_ms=(), draft_ms={}))


def test_every_drafter_and_mode_has_a_colour() -> None:
    assert {*LABELS, *MODES} <= {*COLOURS}


def test_the_report_is_json() -> None:
    read = json.loads(json.dumps(report().as_dict()))
    assert read["entries"][1]["speedup"]["median"] == pytest.approx(2.25)
    assert read["about"]["pair"] == "somewhere"


def test_the_page_needs_no_other_file_and_shows_every_plot_and_table() -> None:
    text = page(replace(report(), entries=report().entries + judged(suffix=[(9, 8), (8, 2)]).entries))
    assert not re.search(r"""(?:src|href)=["'](?!#)(?!data:)""", text)
    assert "@import" not in text
    assert text.count("<svg") == 3
    assert text.count("<table>") == 2
    assert "&lt;CPU&gt;" in text
    assert "<CPU>" not in text
    assert '<span class="from-suffix">def</span>' in text
    Balanced().feed(text)


def test_the_same_report_gives_the_same_page() -> None:
    assert page(report()) == page(report())


def test_a_report_without_measured_cost_has_no_cost_curve() -> None:
    bare = Report(ABOUT, 1, True, report().entries, notes=("Not known.",))
    assert page(bare).count("<svg") == 1
    assert page(replace(bare, pass_ms=report().pass_ms)).count("<svg") == 2
    assert "Not known." in page(bare)
    assert "Not known." in shown(bare)


def test_a_drafter_of_which_too_little_was_judged_has_no_panel() -> None:
    few = [(FEWEST_JUDGED - 1, 1)]
    drawn = depth(judged(suffix=[(9, 8)], head=few))
    assert LABELS["suffix"] in drawn
    assert LABELS["head"] not in drawn
    assert depth(judged(head=few)) == ""


def test_places_in_a_draft_are_whole_numbers() -> None:
    ticks = re.findall(r">(\d+\.\d+)</text>", depth(judged(suffix=[(9, 8)])))
    assert {*ticks} <= {"0.0", "0.2", "0.4", "0.6", "0.8", "1.0"}, "those of the shares"


def test_one_prompt_is_counted_in_the_singular() -> None:
    assert "chat, 1 prompt</caption>" in page(report())
    assert "edit, 2 prompts</caption>" in page(report())
    assert "chat, 1 prompt\n" in re.sub(" +\n", "\n", shown(report()))


def test_a_spread_is_of_what_is_there() -> None:
    assert Spread.of([None, 3.0, 1.0, 2.0, None]) == Spread(2.0, 1.5, 2.5, 3)
    assert Spread.of([None]) is None
    assert Spread.of_ratios([2.0, None, 9.0], [1.0, 5.0, 3.0]) == Spread(2.5, 2.25, 2.75, 2)


def shown(report: Report) -> str:
    text = io.StringIO()
    show(report, Console(file=text, width=80))
    return text.getvalue()


class Balanced(HTMLParser):
    """Fails at an element that is not closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_lossy_modes_are_labelled_and_their_texts_count_as_no_difference() -> None:
    task = Task("edit", ("a",))
    results = [[run(task, "off", [1, 2, 3, 4]), replace(run(task, "draft", [1, 2, 3, 9]), acceptance="typical")]]
    made = replace(report(), entries=tuple(entries(results, {})), samples=tuple(samples(results, "draft")))
    made = replace(made, acceptance="typical")
    assert [(entry.mode, entry.lossy) for entry in made.entries] == [("off", False), ("draft, lossy (typical)", True)]
    assert made.num_differing == 0
    assert "drafts may change the text" in shown(made)
    assert "draft, lossy (typical)" in shown(made)
    assert "draft, lossy (typical)" in page(made)
    assert made.as_dict()["acceptance"] == "typical"
