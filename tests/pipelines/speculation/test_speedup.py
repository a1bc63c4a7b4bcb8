"""What drafts of a fixed length would bring."""

from __future__ import annotations

import random

import pytest

from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.speedup import speedup_of

COST = CostModel((2, 4, 8, 33), (10.0, 12.0, 20.0, 90.0), (0.0,) * 4, {"draft_model": DraftCost(1.5)})


@pytest.mark.parametrize(
    ("acceptance", "draft_ms", "begin_ms", "first"),
    [
        *((0.3, 0.0, 0.0, None), (0.7, 0.0, 0.0, None), (0.7, 1.5, 0.0, None), (0.95, 1.5, 0.0, None)),
        *((0.05, 9.0, 0.0, None), (0.9, 0.2, 6.0, None), (0.95, 0.5, 1.0, 0.4), (0.3, 0.5, 0.0, 0.9)),
    ],
)
def test_the_speedup_is_that_of_a_simulation_of_every_draft_length(
    acceptance: float, draft_ms: float, begin_ms: float, first: float | None
) -> None:
    rng = random.Random(1)

    def simulated(length: int) -> float:
        tokens = passes = 0
        for _ in range(4000):
            passes += 1
            rates = [acceptance if first is None else first, *[acceptance] * length]
            tokens += 1 + next((i for i in range(length) if rng.random() >= rates[i]), length)
        drafting_ms = length * draft_ms + (begin_ms if length else 0)
        return tokens / passes * 10 / (COST.pass_ms([(1 + length, 0)]) + drafting_ms)

    found = speedup_of(COST, acceptance, DraftCost(draft_ms, begin_ms=begin_ms), first=first)
    speedups = [simulated(length) for length in range(33)]
    assert found.ratio == pytest.approx(max(speedups), rel=0.05)
    assert speedups[found.length] == pytest.approx(max(speedups), rel=0.05)
