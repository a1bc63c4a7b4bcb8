"""`outrider doctor`: what it says of a pair is what was measured and checked."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from outrider.app.cli import doctor
from outrider.app.load_options import LoadOptions
from outrider.pipelines.model import exactness, tuning
from outrider.pipelines.model.target import Rows
from outrider.pipelines.model.timing import NoMeasurement
from outrider.pipelines.speculation.cost import CostModel


def test_an_examination_shows_every_finding_on_the_embedded_pair(embedded_pair) -> None:
    console = Console(file=StringIO(), width=100)
    load = LoadOptions(exact=True)
    assert doctor.examine(embedded_pair, console, again=True, load=load)
    shown = console.file.getvalue()
    found = load.load(embedded_pair).speculation.compilation
    assert f"{found.price:.2f} plain passes a token, passes of {found.rows.fewest} to {found.rows.most} rows" in shown
    for finding in (
        "exactness", "the same text in every mode", "id for id", "4,096 tokens", "of weights", "CPU", "33",
        "Time of a pass", "draft model, one", "95%", "times",
    ):  # fmt: skip
        assert finding in shown, finding


@pytest.fixture
def unmeasured(monkeypatch) -> None:
    """No pass can be measured, which spares the time that it takes."""

    def fail(*args: object, **kwargs: object) -> None:
        raise NoMeasurement("Passes took nonsense.")

    monkeypatch.setattr(CostModel, "measure", fail)


@pytest.mark.usefixtures("unmeasured")
def test_a_machine_that_cannot_be_measured_is_said_so(embedded_pair) -> None:
    console = Console(file=StringIO(), width=100)
    assert not doctor.examine(embedded_pair, console, again=True)
    assert "No pass could be measured" in console.file.getvalue()


def test_a_device_that_breaks_the_promise_is_found_out(embedded_pair, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(exactness, "is_exact", lambda model, *context: False)
    for exact in (None, True):
        console = Console(file=StringIO(), width=100)
        assert doctor.examine(embedded_pair, console, load=LoadOptions(exact=exact)) == (exact is None)
        assert "can change the text" in console.file.getvalue()


def test_what_exactness_costs_is_shown_where_it_is_off_for_that(embedded_pair, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "FAIR", 0.0)
    console = Console(file=StringIO(), width=300)
    assert doctor.examine(embedded_pair, console)
    assert "plain passes a token" in console.file.getvalue()
    assert "--exact pays it" in console.file.getvalue()
    assert "any number in a pass" in console.file.getvalue()


@pytest.mark.usefixtures("unmeasured")
def test_where_exactness_is_not_wanted_it_is_neither_promised_nor_priced(embedded_pair) -> None:
    console = Console(file=StringIO(), width=100)
    doctor.examine(embedded_pair, console, load=LoadOptions(exact=False))
    shown = console.file.getvalue()
    assert "the drafting mode can change the text" in shown
    assert "any number in a pass" in shown
    assert "plain passes a token" not in shown


@pytest.mark.usefixtures("unmeasured")
def test_an_exact_device_whose_price_was_not_measured_is_shown_with_its_rows(embedded_pair, monkeypatch) -> None:
    """As an NPU is, where exactness costs nothing."""
    load = LoadOptions.load

    def loaded(options: LoadOptions, pair: Path):
        pipeline = load(options, pair)
        found = replace(pipeline.speculation.compilation, price=None, rows=Rows(8, 8))
        monkeypatch.setattr(pipeline.speculation, "compilation", found)
        return pipeline

    monkeypatch.setattr(LoadOptions, "load", loaded)
    console = Console(file=StringIO(), width=100)
    doctor.examine(embedded_pair, console, load=LoadOptions(exact=True))
    assert "passes of 8 to 8 rows" in console.file.getvalue()
    assert "plain passes a token" not in console.file.getvalue()
