"""Whatever drafts for the target behind a server, its answers are those of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.pipelines import LLMPipeline
from outrider.pipelines.speculation import runtime
from tests.drafting_pairs import WAYS, drafter_of, mode_of

from .serving import MODEL, REPEAT, Served, running, user

pytestmark = pytest.mark.slow


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def pipeline(way: str, drafting_pairs: Path, monkeypatch: pytest.MonkeyPatch) -> LLMPipeline:
    monkeypatch.setattr(runtime, "PREPARED_S", 0.0)
    return LLMPipeline(drafting_pairs / way, exact=True)


@pytest.fixture
def served(pipeline: LLMPipeline) -> Iterator[Served]:
    with running(pipeline) as served:
        yield served


def test_an_answer_is_that_of_plain_decoding_and_its_figures_tell_who_drafted(
    way: str, served: Served, always_drafting: None
) -> None:
    mode = mode_of(way)
    with served.client() as client:
        for temperature in (0, 1.6):
            options: Any = {"model": MODEL, "messages": user(REPEAT), "temperature": temperature, "max_tokens": 24}
            plain, drafted = (
                client.chat.completions.create(**options, seed=11, extra_body={"speculation": each})
                for each in ("off", mode)
            )
            assert drafted.choices[0].message.content == plain.choices[0].message.content
            figures = drafted.speculation
            assert figures["mode"] == mode
            assert figures["drafted_by"] == {drafter_of(way): figures["drafted"]}
            assert figures["drafted"] > 0 == plain.speculation["drafted"]
