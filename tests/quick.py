"""Measurements of a few passes each, for tests to which it does not matter how fast a pair is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def quick_measuring() -> Iterator[None]:
    """Measure costs and the price of exactness by as few passes as can be, also on a busy machine, where times that
    scatter would be taken again."""
    from outrider.pipelines.model import timing, tuning
    from outrider.pipelines.speculation import runtime

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tuning, "PRICED_S", 0.0)
        monkeypatch.setattr(timing, "MOST_REPEATS", timing.FEWEST_REPEATS)
        monkeypatch.setattr(runtime, "MEASURE_S", 0.2)
        yield
