"""What the tests of the decoding engine share."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.pipelines import LLMPipeline

from .real import Models


@pytest.fixture(scope="session")
def models(embedded_pair: Path) -> Models:
    """The models of the embedded pair, compiled once."""
    return Models.load(embedded_pair)


@pytest.fixture(scope="session")
def pipeline(embedded_pair: Path) -> LLMPipeline:
    """The embedded pair as a program would load it."""
    return LLMPipeline(embedded_pair, exact=True)
