"""One server for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from outrider.pipelines import LLMPipeline

from .serving import Served, running, wait_until


@pytest.fixture(scope="session")
def pipeline(embedded_pair: Path) -> LLMPipeline:
    return LLMPipeline(embedded_pair, exact=True)


@pytest.fixture(scope="session")
def _served(pipeline: LLMPipeline) -> Iterator[Served]:
    with running(pipeline) as served:
        yield served


@pytest.fixture
def served(_served: Served) -> Iterator[Served]:
    """The server; nothing is left running or held when a test is over."""
    yield _served
    wait_until(lambda: _served.server.worker.num_open == 0 and _served.pool.num_free == _served.pool.num_blocks)


@pytest.fixture
def always_drafting(pipeline: LLMPipeline) -> Iterator[None]:
    """Four tokens are drafted in every pass, whatever pays on this machine."""
    usual = pipeline.get_generation_config()
    pipeline.set_generation_config({"num_assistant_tokens": 4})
    yield
    pipeline.set_generation_config(usual)


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with served.client() as client:
        yield client
