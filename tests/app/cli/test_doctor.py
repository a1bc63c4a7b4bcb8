"""`outrider doctor`: what it says of a pair is what was measured and checked."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from outrider.app.cli import doctor
from outrider.app.load_options import LoadOptions
from outrider.pipelines.devices.npu_model import NpuModel
from outrider.pipelines.model import exactness, tuning
from outrider.pipelines.model.target import Rows
from outrider.pipelines.model.timing import NoMeasurement
from outrider.pipelines.model.tuning import Compilation
from outrider.pipelines.speculation import runtime
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft_cost import DraftCost
from tests.on_npu import STAND_IN


@pytest.mark.slow
def test_an_examination_shows_every_finding_on_the_embedded_pair(embedded_pair) -> None:
    console = Console(file=StringIO(), width=100)
    load = LoadOptions(exact=True)
    assert doctor.examine(embedded_pair, console, again=True, load=load)
    shown = console.file.getvalue()
    most = load.load(embedded_pair).speculation.compilation.rows.most
    # Whether plain passes have a second row is found out again with every load that follows `again`.
    rows = f"passes of [12] to {most} rows"
    assert re.search(rf"[0-9]\.[0-9]{{2}} times the time of plain decoding, {rows}", shown)
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

    monkeypatch.setattr(runtime, "measure", fail)


@pytest.mark.usefixtures("unmeasured")
def test_a_machine_that_cannot_be_measured_is_said_so(embedded_pair) -> None:
    console = Console(file=StringIO(), width=100)
    assert not doctor.examine(embedded_pair, console, again=True)
    assert "No pass could be measured" in console.file.getvalue()


@pytest.mark.slow
def test_a_device_that_breaks_the_promise_is_found_out(embedded_pair, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(exactness, "is_exact", lambda model, *context: False)
    for exact in (None, True):
        console = Console(file=StringIO(), width=100)
        assert doctor.examine(embedded_pair, console, load=LoadOptions(exact=exact)) == (exact is None)
        assert "can change the text" in console.file.getvalue()


@pytest.fixture
def without_second_row(monkeypatch, tmp_path) -> None:
    """Plain passes have a single row, even where a second one seems to be faster or was found to be before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "WORTH_IT", 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("without_second_row")
def test_what_exactness_costs_is_shown_where_it_is_off_for_that(embedded_pair, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "FAIR", 0.0)
    console = Console(file=StringIO(), width=300)
    assert doctor.examine(embedded_pair, console)
    assert "times the time of plain decoding" in console.file.getvalue()
    assert "use --exact to have it" in console.file.getvalue()
    assert "any number in a pass" in console.file.getvalue()


@pytest.mark.usefixtures("unmeasured", "without_second_row")
def test_where_exactness_is_not_wanted_it_is_neither_promised_nor_priced(embedded_pair) -> None:
    console = Console(file=StringIO(), width=100)
    doctor.examine(embedded_pair, console, load=LoadOptions(exact=False))
    shown = console.file.getvalue()
    assert "the drafting mode can change the text" in shown
    assert "any number in a pass" in shown
    assert "the time of plain decoding" not in shown


@pytest.mark.parametrize(
    ("compilation", "cost"),
    [
        (Compilation(True, "f16", rows=Rows(most=8, whole_prompt=64)), "nothing, as every pass takes as long"),
        (Compilation(True, "f16", rows=Rows(16, 16, 16)), "passes of 16 rows"),
        (
            Compilation(True, "f16", rows=Rows(16, 16, 16), price=1.25),
            "1.25 times the time of plain decoding, passes of 16 rows",
        ),
        (
            Compilation(True, "f32", 2048, Rows(2, 64), 1.05),
            "1.05 times the time of plain decoding, passes of 2 to 64 rows, products above 2048 in parts",
        ),
    ],
    ids=["an NPU", "a GPU, not priced", "a GPU", "the CPU"],
)
def test_the_price_of_exactness_is_told_as_far_as_it_is_known(compilation, cost) -> None:
    (_, finding), (_, told) = doctor._exactness(compilation)
    assert "the same text in every mode" in finding
    assert told == cost


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_threads_that_were_found_to_be_fastest_are_told_from_openvinos_choice(embedded_pair, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tuning, "_is_faster", lambda relative: True)
    monkeypatch.setattr(tuning, "is_quiet", lambda: True)
    for numbers, told in (([], ""), ([1], "1 threads, which are fastest here, ")):
        monkeypatch.setattr(tuning, "other_numbers", lambda own, numbers=numbers: numbers)
        console = Console(file=StringIO(), width=120)
        doctor.examine(embedded_pair, console, load=LoadOptions(exact=bool(numbers)))
        assert told in console.file.getvalue()
        assert ("fastest here" in console.file.getvalue()) == bool(numbers)


def test_a_search_that_took_too_long_is_told() -> None:
    *_, (name, told) = doctor._exactness(Compilation(False, "f32", undecided=True))
    within = f"not found out within {tuning.SEARCH_S:.0f} seconds"
    assert (name, told) == ("its cost", f"{within}; use --exact to have it anyway")


@pytest.mark.slow
def test_on_an_npu_that_is_exact_the_promise_costs_nothing(npu_pair, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(NpuModel, "is_exact", lambda model: True)
    console = Console(file=StringIO(), width=120)
    assert doctor.examine(npu_pair, console, load=LoadOptions("NPU", exact=True, properties=STAND_IN))
    shown = console.file.getvalue()
    assert "nothing, as every pass takes as long" in shown
    assert "NPU (its code computes on CPU)" in shown
    assert "before release never on a real NPU" in shown


def test_where_a_pass_has_a_single_row_nobody_is_told_to_try_again(npu_pair) -> None:
    console = Console(file=StringIO(), width=200)
    properties = {**STAND_IN, "NPUW_LLM_MAX_GENERATION_TOKEN_LEN": 1, "MAX_PROMPT_LEN": 64}
    assert doctor.examine(npu_pair, console, load=LoadOptions("NPU", fallback="CPU", properties=properties))
    shown = console.file.getvalue()
    assert "--fallback CPU is left out, since it is NPU that is examined." in shown
    assert "Load the pair with NPUW_LLM_MAX_GENERATION_TOKEN_LEN=8 to draft" in shown
    assert "less busy" not in shown


def test_a_draft_model_that_failed_on_its_device_is_told_beside_one_that_did_not(embedded_pair) -> None:
    drafts = {"draft_model": DraftCost(1.0), "head": DraftCost(2.0)}
    costs = {
        place: CostModel((1, 8), (20.0, 20.0), (0.0, 0.0), {name: drafts[name] for name in names})
        for place, names in (("CPU", ("draft_model", "head")), ("GPU", ("head",)))
    }
    console = Console(file=StringIO(), width=200)
    console.print(doctor._draft_devices(embedded_pair, console, LoadOptions(), ("CPU", "GPU"), costs, 7))
    assert re.search(r"CPU +│ +1\.00 │ +[0-9.]+ times", console.file.getvalue())
    assert re.search(r"GPU +│ +│ .*GPU failed when it was measured: update", console.file.getvalue())
