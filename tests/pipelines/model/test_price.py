"""The price of exactness: measured for as long as it is in doubt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean
from typing import Any

import pytest

from outrider.pipelines.model import price
from outrider.pipelines.model.price import Price
from outrider.pipelines.model.target import Rows, Window
from outrider.pipelines.model.tuning import FAIR

PASS_S = 0.06


class Machine:
    """A model, and the clock by which its passes take PASS_S on average, and `ratio` times that with two rows."""

    def __init__(self, ratio: float, seed: int) -> None:
        self.rows = Rows()
        self.now = 0.0
        self._ratio = ratio
        self._rng = random.Random(seed)

    def forward(self, windows: Sequence[Window]) -> None:
        self.now += PASS_S * self._rng.lognormvariate(0, 0.05) * (self._ratio if self.rows.fewest > 1 else 1.0)


@pytest.mark.parametrize(("ratio", "least_s", "most_s"), [(1.0, 1, 1.3), (1.5, 1, 1.3), (1.115, 2, 8.3)])
def test_it_is_measured_for_as_long_as_it_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, ratio: float, least_s: float, most_s: float
) -> None:
    """On average over some runs, as noise may settle a doubt early."""
    monkeypatch.setattr(price, "PRICED_S", 1.0)
    took_s = []
    for seed in range(20):
        machine: Any = Machine(ratio, seed)
        monkeypatch.setattr(price.time, "perf_counter", lambda machine=machine: machine.now)
        found = Price.measured(machine, Rows(), Rows(2), FAIR)
        assert found.ratio == pytest.approx(ratio, abs=0.15), seed
        assert machine.rows == Rows()
        took_s.append(machine.now)
    assert least_s <= mean(took_s) <= most_s
