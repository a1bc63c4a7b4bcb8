"""Clients of every kind at once: those that stay are answered as if alone, and those that go leave nothing behind."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from outrider.pipelines import LLMPipeline

from .serving import running, wait_until
from .traces import asked_alone, trace

CLIENTS, EACH = 8, 4
SEED = 20


@pytest.mark.slow
def test_who_stays_is_answered_as_alone_and_nothing_is_left_of_any(pipeline: LLMPipeline) -> None:
    before = threading.active_count()
    with running(pipeline) as served:
        questions = asyncio.run(asked_alone(served.url, 10, random.Random(SEED)))
        outcome = asyncio.run(trace(served.url, CLIENTS, questions, EACH, SEED))
        wait_until(lambda: served.server.worker.num_open == 0)
        wait_until(lambda: served.pool.num_free == served.pool.num_blocks)
        assert not outcome.wrong
        assert outcome.ended.total() == CLIENTS * EACH
        assert served.get("/health").json()["status"] == "ok"
        assert served.metric('outrider_requests_total{outcome="failed"}') == 0
    assert threading.active_count() <= before
