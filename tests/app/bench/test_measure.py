"""Modes are measured in turns, from a cold cache, and a different text is seen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from outrider.app.bench.measure import differing, in_turns, measure
from outrider.app.bench.task import Task

from .traces import record, run

MODES = ("off", "lookup", "auto")


class Scripted:
    """Answers with the number of its request, and notes what it was asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def forget_prompts(self) -> None:
        self.calls.append("forget")

    def generate(self, inputs: Any, **options: Any) -> Any:
        self.calls.append((inputs, options))
        trace = (record(0.0, 1.0, ["target"]),)
        answer = SimpleNamespace(token_ids=(len(self.calls),), trace=trace)
        return SimpleNamespace(generations=[answer] * (len(inputs) if isinstance(inputs, list) else 1))


def test_every_mode_answers_every_task_with_nothing_left_in_the_cache() -> None:
    pipeline = Scripted()
    tasks = [Task("a", ("one",), {"rng_seed": 3}), Task("b", ("two", "three")), Task("c", (({"role": "user"},),))]
    results = list(measure(pipeline, pipeline.forget_prompts, tasks, MODES, 9, seed=1))
    assert pipeline.calls[::2] == ["forget"] * 9
    asked = pipeline.calls[1::2]
    assert [inputs for inputs, _ in asked] == ["one"] * 3 + [["two", "three"]] * 3 + [[{"role": "user"}]] * 3
    assert sorted(options["mode"] for _, options in asked[:3]) == sorted(MODES)
    assert asked[0][1] == {"max_new_tokens": 9, "rng_seed": 3, "mode": in_turns(MODES, 1, 0)[0]}
    assert [[r.mode for r in runs] for runs in results] == [list(MODES)] * 3
    assert [len(runs[0].generations) for runs in results] == [1, 2, 1]


def test_the_order_is_shuffled_for_each_task_and_the_seed_repeats_it() -> None:
    orders = [tuple(in_turns(MODES, 5, number)) for number in range(30)]
    assert orders == [tuple(in_turns(MODES, 5, number)) for number in range(30)]
    assert len(set(orders)) == 6
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(MODES))}


def test_a_mode_with_other_tokens_than_plain_is_named() -> None:
    task = Task("a", ("x",))
    runs = [run(task, "lookup", [1, 2, 3]), run(task, "off", [1, 2, 3]), run(task, "auto", [1, 2, 4])]
    assert differing(runs) == {"lookup": 0, "off": 0, "auto": 1}


def test_of_a_batch_the_answers_that_differ_are_counted() -> None:
    task = Task("a", ("x", "y", "z"))
    off, auto = (
        replace(run(task, mode, ids[0]), generations=tuple(run(task, mode, each).generations[0] for each in ids))
        for mode, ids in (("off", [[1, 2], [3, 4], [5, 6]]), ("auto", [[1, 2], [3, 9], [5, 6]]))
    )
    assert differing([off, auto]) == {"off": 0, "auto": 1}


def test_acceptance_is_that_of_all_modes_that_draft() -> None:
    pipeline = Scripted()
    (runs,) = measure(pipeline, pipeline.forget_prompts, [Task("a", ("one",))], MODES, 9, seed=1, acceptance="typical")
    asked = {options["mode"]: options.get("acceptance") for _, options in pipeline.calls[1::2]}
    assert asked == {"off": None, "lookup": "typical", "auto": "typical"}
    assert [run.lossy for run in runs] == [False, True, True]
    assert not any(differing(runs).values())
