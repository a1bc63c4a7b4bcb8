"""After a long context, where attention adds to the price of rows: an answer loses its budget at most, and little of
that once it is known that drafts fail."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from outrider.pipelines.speculation import draft_model_policy
from outrider.pipelines.speculation.acceptance import AcceptanceModel
from outrider.pipelines.speculation.budgets import ALLOWANCE, TOLERANCE
from outrider.pipelines.speculation.draft import LONGEST, Draft
from outrider.pipelines.speculation.measuring import measure

from . import machine
from .odds import Clock, OddsDrafter, OddsHead, Remembering
from .planning import DEAR_FIRST, draft_of, hand_on, planner_of

CONTEXT, LENGTH = 3600, 200
ERROR = 0.001  # share of the time of an answer by which what its passes take may be misjudged
NUM_ANSWERS, NUM_FIRST = 8, 4  # answers, and those after which something is learnt

# As measured on the wide pair (tests/benchmark/README.md): ms by rows, and what a token of context adds in passes of
# one row and of more.
MACHINES = {
    "Zen 4": ({1: 26, 2: 27, 6: 29, 8: 34, 16: 54, 32: 99}, 0.0026, 0.0066),
    "without VNNI": (DEAR_FIRST, 0.003, 0.012),
    "AMX": ({1: 43, 2: 45, 8: 56, 16: 70, 32: 110}, 0.003, 0.014),
}


def takes(name: str, least_rows: int) -> Callable[[int, int], float]:
    by_rows, one_ms, more_ms = MACHINES[name]

    def ms(rows: int, context: int) -> float:
        rows = max(rows, least_rows)
        attention_ms = context * (more_ms if rows > 1 else one_ms)
        return float(np.interp(rows, list(by_rows), list(by_rows.values()))) + attention_ms

    return ms


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("least_rows", [1, 2], ids=["not exact", "exact"])
@pytest.mark.parametrize("has_models", [False, True], ids=["text", "text and models"])
def test_where_all_drafts_fail_auto_is_soon_at_98_percent_of_off(name, least_rows, has_models, monkeypatch):
    """Each answer may lose its budget: the share TOLERANCE, and ALLOWANCE passes with a draft of one token, together 3
    to 5% of 200 tokens. The first ones do. With exactness a pass has two rows at least, so that a model's first token
    has a row for nothing, and models are asked more often: later answers lose up to 2.5% to a head and a draft model
    together."""
    of_target, python = takes(name, least_rows), Clock()
    clock = machine.Clock(monkeypatch, of_target)

    def draft(rows: int, context: int) -> None:
        clock.now += of_target(1, 0) * (0.07 + 0.006 * rows) / 1e3

    text, models = OddsDrafter("suffix", {}), []
    if has_models:
        models = [Remembering("draft_model", {}, missed=256), OddsHead({}, python, missed=256, reading_ms=0.012)]
    cost = measure(clock.run, {model.name: draft for model in models}, 4096, least_rows)
    priors = dict.fromkeys(("suffix", "draft_model", "head"), (0.7, 1.8))
    acceptance = AcceptanceModel({**priors, **draft_model_policy.PRIORS})
    planner = planner_of(cost, text, *models, clock=python, acceptance=acceptance)
    rng, plain_ms, took_ms = Random(0), [], []
    for _ in range(NUM_ANSWERS):
        request, began_s = draft_of().request, clock.now + python.now + sum(model.clock_s for model in models)
        for written in range(LENGTH):
            of_pass = Draft(request, CONTEXT + written, min(LONGEST, LENGTH - 1 - written))
            text.odds[request] = [0.5] * 4 if rng.random() < 0.5 else []
            for model in models:
                model.odds[request] = [0.8] * LONGEST
            planner.draft([of_pass])
            before_s = clock.now
            clock.run(of_pass.rows, of_pass.context)
            hand_on(planner, [of_pass])
            planner.observe([of_pass], [[3]], 1e3 * (clock.now - before_s))
            for model in models:
                model.passed(request, [3])
        planner.release(request)
        took_ms.append(1e3 * (clock.now + python.now + sum(model.clock_s for model in models) - began_s))
        plain_ms.append(sum(of_target(1, CONTEXT + written) for written in range(LENGTH)))
        most_ms = (1 + TOLERANCE + ERROR) * plain_ms[-1] + ALLOWANCE * of_target(2, CONTEXT)
        assert took_ms[-1] <= most_ms
    later_ms = sum(took_ms[NUM_FIRST:])
    assert sum(plain_ms[NUM_FIRST:]) >= (0.97 if has_models and least_rows > 1 else 0.98) * later_ms
