"""The server's pipeline, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.pipelines import LLMPipeline


@pytest.fixture(scope="session")
def pipeline(embedded_pair: Path) -> LLMPipeline:
    pipeline = LLMPipeline(embedded_pair, exact=True)
    pipeline.warm_up()
    return pipeline
