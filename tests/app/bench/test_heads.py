"""Several heads of one target stand in one report, each beside its own plain decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.app.bench.heads import MODES, numbered, parted, together
from outrider.app.bench.html_report import page
from outrider.app.bench.report import entries
from outrider.app.bench.task import Task

from .test_report import ABOUT, report, shown
from .traces import run


def test_each_head_is_compared_with_its_own_plain_decoding() -> None:
    """The second run of plain decoding takes twice as long, as on a machine that is busy by then."""
    task, reports = Task("edit", ("a",)), []
    for name, plain_s, head_s in (("a", 3.0, 1.0), ("b", 6.0, 3.0)):
        modes = (("off", plain_s), ("suffix", 1.5), ("head", head_s))
        results = [[run(task, mode, [1, 2, 3, 4], seconds=s) for mode, s in modes]]
        about = {**ABOUT, "models": {**ABOUT["models"], "head": {"from": f"heads/{name}"}}}
        measured = {"draft_ms": {"draft_model": plain_s, "head": head_s}, "begin_ms": {"head": 2.5}, "notes": ("busy",)}
        reports.append(replace(report(), about=about, entries=tuple(entries(results, {})), **measured))
    both = together(reports)
    speedups = [(entry.mode, entry.speedup and entry.speedup.median) for entry in both.entries]
    first = [("off", 1.0), ("suffix", pytest.approx(2.0)), ("head 1", pytest.approx(3.0))]
    assert speedups == [*first, ("head 2", pytest.approx(2.0))]
    assert both.about["models"].keys() == {"target", "head 1", "head 2"}
    assert both.draft_ms == {"draft_model": 3.0, "head 1": 1.0, "head 2": 3.0}
    assert both.begin_ms == {"head 1": 2.5, "head 2": 2.5}
    assert both.notes[:-1] == ("busy",)
    assert [sample.mode for sample in both.samples] == ["auto 1", "auto 1"]
    for text in (shown(both), page(both)):
        for words in ("head 1", "head 2", "heads/b"):
            assert words in text
    assert max(map(len, shown(both).splitlines())) <= 80


def test_a_difference_is_told_by_the_number_of_the_head() -> None:
    both = together([report(), report(wrong=True)])
    assert [entry.differing for entry in both.entries if entry.mode == "auto 2"] == [2, 1]
    assert "DIFFERENT TEXT: edit, mode auto 2: 2 of 2 prompts" in shown(both)


def test_a_promise_that_one_load_does_not_keep_is_not_made() -> None:
    assert not together([report(), replace(report(), exact=False)]).exact


@pytest.mark.parametrize("lossy", ["", ", lossy (typical)"])
def test_a_number_is_found_again_in_the_label_that_it_was_put_into(lossy: str) -> None:
    for name in (*MODES, "draft_model", "off"):
        label = numbered(f"{name}{lossy}", 12)
        assert label.endswith(lossy)
        assert parted(label) == (name, 12 if name in MODES else 0)
        assert parted(f"{name}{lossy}") == (name, 0)
