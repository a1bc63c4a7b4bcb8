"""The cost model: what it was told is what it predicts, and nonsense is not believed."""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines import LLMPipeline
from outrider.pipelines.model import profile
from outrider.pipelines.model.pair import Pair
from outrider.pipelines.model.profile import profile_path
from outrider.pipelines.model.timing import NoMeasurement
from outrider.pipelines.speculation import cost_file, runtime
from outrider.pipelines.speculation.cost import AT_ONCE, REFINED_AFTER, CostModel
from outrider.pipelines.speculation.cost_file import measured_cost
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.measuring import measure

from .machine import Clock

pytestmark = pytest.mark.usefixtures("thorough_measuring")

MODEL = CostModel((2, 4, 8), (10.0, 11.0, 15.0), (0.01, 0.02, 0.02), {"draft_model": DraftCost(2.0, 0.1)})


def test_a_pass_costs_what_its_rows_cost_together_and_each_windows_context():
    assert MODEL.pass_ms([(2, 0)]) == 10
    assert MODEL.pass_ms([(1, 0)]) == 10, "fewer rows are filled up"
    assert MODEL.pass_ms([(3, 100)]) == pytest.approx(10.5 + 1.5)
    assert MODEL.pass_ms([(1, 0), (2, 100)]) == pytest.approx(10.5 + 1)
    assert MODEL.pass_ms([(12, 0)]) == pytest.approx(19), "along the last stretch"


@given(st.integers(1, 12), st.integers(0, 2000), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2000))))
def test_a_row_costs_the_difference_of_two_passes(rows, context, others):
    difference = MODEL.pass_ms([(rows + 1, context), *others]) - MODEL.pass_ms([(rows, context), *others])
    total = rows + sum(length for length, _ in others)
    assert MODEL.row_ms(total, rows, context) == pytest.approx(difference, abs=1e-9)


@given(st.integers(1, 150), st.integers(1, 6), st.integers(0, 2000), st.integers(0, 9))
def test_rows_cost_what_each_of_them_does_behind_those_before_it(total, rows, context, number):
    costs = [MODEL.row_ms(total + i, rows + i, context) for i in range(number)]
    assert MODEL.rows_ms(total, rows, context, number) == pytest.approx(costs, abs=1e-9)


def test_measuring_finds_what_passes_take(monkeypatch):
    clock = Clock(monkeypatch, lambda rows, context: 20 + 2 * rows + 0.003 * context * rows)
    draft = Clock(monkeypatch, lambda rows, context: 3 + 0.25 * rows)
    draft.run = lambda rows, context: clock.__setattr__("now", clock.now + draft.takes(rows, context) / 1e3)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    made = measure(clock.run, {"draft_model": draft.run}, 4096)
    for rows, context in ((2, 0), (5, 300), (20, 1500), (33, 1900)):
        assert made.pass_ms([(rows, context)]) == pytest.approx(clock.takes(rows, context), rel=1e-6)
    assert made.of_draft("draft_model").token_ms == pytest.approx(3.25)
    assert made.of_draft("draft_model").row_ms == pytest.approx(0.25)
    assert made.of_draft("draft_model").context_ms == pytest.approx(0)


def test_a_single_row_may_cost_much_less_over_a_long_context_than_two(monkeypatch):
    clock = Clock(monkeypatch, lambda rows, context: 20 + rows + 0.01 * context * (1 if rows == 1 else 4))
    made = measure(clock.run, {}, 4096, least_rows=1)
    for rows in (1, 2, 3, 5, 33):
        assert made.pass_ms([(rows, 3600)]) == pytest.approx(clock.takes(rows, 3600), rel=1e-6)


@given(seed=st.integers(0, 10_000))
def test_more_rows_never_cost_less_though_the_clock_said_so(seed):
    """Else something is drafted for them, however little it is worth."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock(monkeypatch, lambda rows, context: (20 + rows + 0.004 * context) * rng.uniform(1, 1.15))
        made = measure(clock.run, {}, 4096)
    for context in (0, 2000, 4000):
        assert all(made.pass_ms([(n + 1, context)]) >= made.pass_ms([(n, context)]) - 1e-9 for n in range(2, 40))
    for rows in (64, 96, 160, 256):
        assert made.pass_ms([(rows, 0)]) == pytest.approx(20 + rows, rel=0.35), "as many as a batch may draft"


@pytest.mark.parametrize("is_tiled", [False, True])
def test_it_is_found_out_whether_a_begun_tile_costs_a_whole_one(monkeypatch, is_tiled):
    def takes(rows, context):
        return 20 + 2 * (rows + -rows % 32 if is_tiled and rows > 64 else rows)

    clock = Clock(monkeypatch, takes)
    made = measure(clock.run, {}, 4096)
    assert made.is_tiled == is_tiled
    for rows in (33, 64, 65, 80, 96, 97, 150):
        assert made.pass_ms([(rows, 0)]) == pytest.approx(takes(rows, 0))
    for rows in range(1, 600):
        whole = made.without_part_tile(rows)
        assert whole == rows or (is_tiled and rows > 64 and whole % 64 == 0 and 0 < rows - whole < 64)
        assert takes(whole, 0) + 2 * (rows - whole) <= takes(rows, 0), (
            "cutting costs more than it saves, but for a pass"
        )


def test_where_there_was_no_time_to_find_out_prompts_are_cut_in_whole_tiles(monkeypatch):
    """A prompt that is cut for nothing takes one small pass more."""
    clock = Clock(monkeypatch, lambda rows, context: 40 + 10 * rows)
    made = measure(clock.run, {}, 4096, budget_s=0.5)
    assert made.is_tiled
    assert made.without_part_tile(150) == 128
    assert not measure(clock.run, {}, 4096).is_tiled


def test_a_short_context_is_measured_within_its_bounds(monkeypatch):
    asked = []
    clock = Clock(monkeypatch, lambda rows, context: asked.append(rows + context) or 5.0 + rows)
    measure(clock.run, {"draft_model": clock.run}, 20)
    assert max(asked) <= 20


@pytest.mark.parametrize("takes", [lambda rows, context: 0.0, lambda rows, context: -3.0], ids=["zero", "negative"])
def test_times_that_cannot_be_are_no_measurement(monkeypatch, takes):
    with pytest.raises(NoMeasurement):
        measure(Clock(monkeypatch, takes).run, {}, 4096)


def test_wild_times_are_no_measurement(monkeypatch):
    times = (1.05**n for n in itertools.count())
    with pytest.raises(NoMeasurement, match="took"):
        measure(Clock(monkeypatch, lambda rows, context: next(times)).run, {}, 4096)


def test_passes_that_were_quick_but_once_are_tried_until_they_are_again(monkeypatch):
    tried = Counter()

    def takes(rows, context):
        tried[rows, context] += 1
        return (10 + rows) * (1 if rows != 4 or tried[rows, context] in (2, 60) else 5)

    made = measure(Clock(monkeypatch, takes).run, {}, 4096)
    assert made.pass_ms([(4, 0)]) == pytest.approx(14)
    assert max(tried.values()) == 60


def test_the_time_of_a_pass_on_a_machine_that_is_often_busy_is_that_of_the_quiet_moments(monkeypatch):
    rng = random.Random(2)
    clock = Clock(monkeypatch, lambda rows, context: (10 + rows) * rng.choice([1.0, 1.0, 3.0, 9.0]))
    made = measure(clock.run, {}, 4096)
    assert made.pass_ms([(5, 0)]) == pytest.approx(15)


def test_a_burst_of_noise_does_not_make_some_rows_dear(monkeypatch):
    clock = Clock(monkeypatch, lambda rows, context: (10 + rows) * (2 if 0.3 < clock.now < 0.9 else 1))
    made = measure(clock.run, {}, 4096)
    for rows in range(2, 34):
        assert made.pass_ms([(rows, 0)]) == pytest.approx(10 + rows)


def test_a_busy_machine_changes_the_prediction_and_a_quiet_one_changes_it_back():
    model = CostModel((2, 4, 8), (10.0, 11.0, 15.0), (0.0, 0.0, 0.0))
    for _ in range(100):
        model.observe([(2, 0)], 30.0)
    assert model.pass_ms([(2, 0)]) == pytest.approx(30, rel=0.02)
    for _ in range(200):
        model.observe([(2, 0)], 10.0)
    assert model.pass_ms([(2, 0)]) == pytest.approx(10, rel=0.02)
    before = model.pass_ms([(2, 0)])
    model.observe([(2, 0)], 1e9)
    assert model.pass_ms([(2, 0)]) < 1.5 * before, "one stall spoils the plan"


@pytest.mark.parametrize(
    ("context_ms", "windows", "few_ms", "many_ms"),
    [
        ((0.0, 0.0, 0.0), [(8, 0)], 10.0, 30.0),
        ((0.0, 0.0, 0.0), [(40, 0), (40, 0)], 10.0, 400.0),
        ((0.01, 0.011, 0.012), [(8, 3000)], 40.0, 80.0),
    ],
    ids=["measured", "larger than any that was measured", "over a long context"],
)
def test_a_number_of_rows_that_turns_out_dearer_is_learnt(context_ms, windows, few_ms, many_ms):
    model, few = CostModel((2, 4, 8), (10.0, 11.0, 15.0), context_ms), [(2, windows[0][1])]
    before = model.row_ms(2, *few[0])
    for _ in range(300):
        model.observe(few, few_ms)
        model.observe(windows, many_ms)
    assert model.pass_ms(few) == pytest.approx(few_ms, rel=0.1)
    assert model.pass_ms(windows) == pytest.approx(many_ms, rel=0.1)
    assert model.row_ms(2, *few[0]) > 2 * before, "what others cost follows"


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20)
def test_costs_that_were_measured_at_a_busy_moment_are_mended_by_the_passes_that_follow(seed):
    rng = random.Random(seed)
    rows = (2, 3, 4, 6, 8, 12, 16, 33)

    def takes(total_rows, context):
        return 20 + 2 * total_rows + 0.002 * context * total_rows**0.5

    at_once = [takes(n, 0) * rng.choice((1, 1, 1.5)) for n in rows]
    base = tuple(min(at_once[i:]) for i in range(len(rows)))
    context = tuple(0.002 * n**0.5 * rng.uniform(1, 1.4) for n in (2, 2, 2, 2, 2, 12, 33, 33))
    model = CostModel(rows, base, tuple(sorted(context)))
    for _ in range(400):
        window = (rng.choice(rows), rng.choice((100, 1000)))
        model.observe([window], takes(*window) * math.exp(rng.gauss(0, 0.05)) * (5 if rng.random() < 0.01 else 1))
    for window in itertools.product(rows, (100, 1000)):
        assert model.pass_ms([window]) == pytest.approx(takes(*window), rel=0.15)
    more = model.pass_ms([(16, 100)]) - model.pass_ms([(4, 100)])
    assert more == pytest.approx(takes(16, 100) - takes(4, 100), rel=0.4)


def test_only_the_first_passes_are_learnt_from_one_by_one_where_costs_were_estimated():
    guessed = replace(MODEL, base_doubt=(0.0, 0.5, 0.5), context_doubt=(0.0, 0.0, 0.0))
    changes = []
    for _ in range(REFINED_AFTER + 3 * AT_ONCE):
        before = guessed.pass_ms([(4, 0)])
        guessed.observe([(4, 0)], 1.5 * before)
        changes.append(guessed.pass_ms([(4, 0)]) != before)
    assert all(changes[:REFINED_AFTER])
    assert changes[REFINED_AFTER:] == 3 * [*(AT_ONCE - 1) * [False], True]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=50)
def test_more_rows_never_cost_less_whatever_the_passes_take(seed):
    rng = random.Random(seed)
    model = CostModel((2, 4, 8), (10.0, 11.0, 15.0), (0.01, 0.02, 0.02))
    for _ in range(rng.randrange(1, 60)):
        windows = [(rng.randint(1, 40), rng.randint(0, 4000)) for _ in range(rng.randint(1, 4))]
        model.observe(windows, math.exp(rng.uniform(0, 8)))
    for rows, context in itertools.product(range(1, 40), (0, 4000)):
        assert model.row_ms(rows, rows, context) >= -1e-9
    for rows in range(1, 12):
        means = [sum(model.rows_ms(rows, 1, 0, more)) / more for more in range(1, 40)]
        assert model.least_row_ms(rows) == pytest.approx(min((*means, model.row_ms(200, 1, 0))))


def test_rows_that_seem_to_cost_nothing_are_taken_to_cost_something(monkeypatch):
    """Else whatever is drafted would seem free, for good: nothing shows then what rows cost."""
    made = measure(Clock(monkeypatch, lambda rows, context: 20 + 0.003 * context).run, {}, 4096)
    assert made.is_guessed
    assert all(made.row_ms(rows, rows, 0) > 0 for rows in range(2, 64))
    assert made.pass_ms([(1, 1000)]) == pytest.approx(23, rel=0.01)


@pytest.mark.parametrize("slow", [33.0, 500.0])
def test_one_slow_pass_behind_a_long_context_does_not_spoil_what_is_measured(monkeypatch, slow):
    """Its time, divided by the tokens, would say that a short context takes longer than the whole pass."""
    clock = Clock(monkeypatch, lambda rows, context: 0.5 + 0.1 * rows + (slow if context > 64 else 0.0))
    made = measure(clock.run, {}, 4096)
    assert made.is_guessed
    assert made.pass_ms([(2, 64)]) == pytest.approx(0.7)
    for _ in range(300):
        for rows, context in ((2, 500), (3, 900), (4, 300)):
            made.observe([(rows, context)], 0.5 + 0.1 * rows + 1e-4 * context)
    assert made.pass_ms([(2, 500)]) == pytest.approx(0.75, rel=0.05)


def test_what_is_kept_is_what_was_measured(tmp_path):
    path = tmp_path / "deep" / "cost.json"
    model = CostModel((2, 4, 8), (10.0, 11.0, 15.0), (0.01, 0.02, 0.02), {"draft_model": DraftCost(2.0, 0.1)})
    model.observe([(2, 0)], 50.0)
    cost_file.save(model, path)
    assert cost_file.load(path) == MODEL
    assert [file.name for file in path.parent.iterdir()] == ["cost.json"]


GOOD = {
    "format": 12, "rows": [2, 4], "base_ms": [1.0, 2.0], "context_ms": [0.0, 0.0],
    "drafts": {"head": {"token_ms": 1.0, "row_ms": 0.0, "context_ms": 0.0}}, "is_tiled": False,
    "base_doubt": [], "context_doubt": [0.0, 0.5], "change_ms": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", "7", json.dumps({**GOOD, "format": 0}), json.dumps({**GOOD, "rows": [4, 2]}),
        json.dumps({**GOOD, "rows": [2]}), json.dumps({**GOOD, "base_ms": [0.0, 2.0]}),
        json.dumps({**GOOD, "base_ms": [2.0, 1.0]}), json.dumps({**GOOD, "context_ms": [0.2, 0.1]}),
        json.dumps({**GOOD, "base_ms": [1.0, "x"]}), json.dumps({**GOOD, "drafts": {"head": {"token_ms": -1.0}}}),
        json.dumps({**GOOD, "context_ms": [-1.0, 0.0]}), json.dumps({**GOOD, "base_ms": [1.0, float("inf")]}),
        json.dumps({**GOOD, "base_ms": [1.0, float("nan")]}), json.dumps({**GOOD, "more": 1}),
        json.dumps({**GOOD, "is_tiled": 1}), json.dumps({**GOOD, "change_ms": -1.0}), json.dumps({**GOOD, "format": 1}),
        json.dumps({name: value for name, value in GOOD.items() if name != "rows"}), "\x00\xff",
        json.dumps({name: value for name, value in GOOD.items() if name != "drafts"}),
        json.dumps({**GOOD, "rows": [2.5, 4]}), json.dumps({**GOOD, "drafts": {"head": {"token_ms": "1"}}}),
        json.dumps({**GOOD, "base_doubt": [0.1]}), json.dumps({**GOOD, "context_doubt": [0.1, -1.0]}),
    ],
)  # fmt: skip
def test_a_damaged_file_is_measured_again(tmp_path, content):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(GOOD))
    assert cost_file.load(path) is not None
    path.write_text(content, encoding="latin-1")
    assert cost_file.load(path) is None
    assert measured_cost(path, lambda: MODEL) == MODEL
    assert cost_file.load(path) == MODEL


def test_without_a_measurement_decoding_is_plain_and_says_so(tmp_path, caplog):
    def fail():
        raise NoMeasurement("Passes took nonsense.")

    assert measured_cost(tmp_path / "cost.json", fail) is None
    assert "nothing is drafted: Passes took nonsense." in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_cache_folder_that_cannot_be_written_costs_the_keeping_only(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert measured_cost(tmp_path / "file" / "cost.json", lambda: MODEL) == MODEL
    assert "will be repeated next time" in caplog.text


def test_what_is_measured_anew_is_not_read_from_a_file_that_could_not_be_removed(tmp_path):
    path = tmp_path / "cost.json"
    cost_file.save(replace(MODEL, change_ms=7.0), path)
    assert measured_cost(path, lambda: MODEL, anew=True) == MODEL
    assert cost_file.load(path) == MODEL


def test_another_model_or_other_properties_are_measured_anew(embedded_pair):
    pair = Pair.open(embedded_pair)
    path = profile_path(pair, "CPU", {}, True)
    assert path == profile_path(pair, "CPU", {}, True)
    others = [
        profile_path(pair, "CPU", {"INFERENCE_NUM_THREADS": 1}, True),
        profile_path(pair, "CPU", {}, False),
        profile_path(Pair.open(pair.target), "CPU", {}, True),
    ]
    assert len({path, *others}) == 4


def test_another_processor_is_measured_anew(embedded_pair, monkeypatch):
    """Though the cache folder is the same, as in a shared home folder."""

    class Core(profile.ov.Core):
        def get_property(self, device, name):
            return "another" if name == "FULL_DEVICE_NAME" else super().get_property(device, name)

    pair = Pair.open(embedded_pair)
    path = profile_path(pair, "CPU", {}, True)
    monkeypatch.setattr(profile.ov, "Core", Core)
    assert profile_path(pair, "CPU", {}, True) != path


@pytest.mark.slow
def test_a_pipeline_measures_once_and_keeps_it(embedded_pair, monkeypatch):
    first = LLMPipeline(embedded_pair)
    first.speculation._profile.unlink(missing_ok=True)
    first.generate("x", max_new_tokens=3)
    assert cost_file.load(first.speculation._profile) is not None

    def measure(*args, **kwargs):
        raise AssertionError("measured again")

    monkeypatch.setattr(runtime, "measure", measure)
    second = LLMPipeline(embedded_pair)
    second.generate("x", max_new_tokens=3)
    assert second.speculation.cost is not None
