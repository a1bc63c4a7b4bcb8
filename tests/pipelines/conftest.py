"""What the tests of the decoding engine share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from outrider.pipelines import LLMPipeline
from tests.drafting_pairs import mode_of

from .real import EMBEDDED, Models


@pytest.fixture(scope="session")
def models_in() -> Callable[..., Models]:
    """`Models.load`, which compiles those of a folder once."""
    return cache(Models.load)


@pytest.fixture
def models(models_in: Callable[..., Models], embedded_pair: Path, request: pytest.FixtureRequest) -> Models:
    """Those of the embedded pair, or of one that drafts in another way where a test asks for it (see `in_ways`)."""
    way = getattr(request, "param", EMBEDDED)
    if way == EMBEDDED:
        return models_in(embedded_pair)
    pairs: Path = request.getfixturevalue("drafting_pairs")
    return models_in(pairs / way, ("off", mode_of(way), "auto"))


@pytest.fixture(scope="session")
def pipeline(embedded_pair: Path) -> LLMPipeline:
    """The embedded pair as a program would load it."""
    return LLMPipeline(embedded_pair, exact=True)
