"""The server's pipeline, loaded once; its chat template knows tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.pipelines import LLMPipeline

from ..server.serving import MODEL
from ..server.tools import pair_with_tools


@pytest.fixture(scope="session")
def pipeline(embedded_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> LLMPipeline:
    pipeline = LLMPipeline(pair_with_tools(embedded_pair, tmp_path_factory.mktemp("tools") / MODEL), exact=True)
    pipeline.warm_up()
    return pipeline
