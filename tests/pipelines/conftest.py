"""What the tests of the decoding engine share."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.pipelines import LLMPipeline
from outrider.pipelines.cost import CostModel

from .real import Models


@pytest.fixture(scope="session")
def models(embedded_pair: Path) -> Models:
    """The models of the embedded pair, compiled once."""
    return Models.load(embedded_pair)


@pytest.fixture(scope="session")
def pipeline(embedded_pair: Path) -> LLMPipeline:
    """The embedded pair as a program would load it."""
    return LLMPipeline(embedded_pair)


@pytest.fixture
def drafters_without_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafters of the tests take no time, which the cost model would learn."""
    monkeypatch.setattr(CostModel, "observe_draft", lambda *times: None)
