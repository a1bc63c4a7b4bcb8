"""Sixty-four clients at once; `python -m tests.benchmark.load` does the same for longer."""

from __future__ import annotations

import asyncio
import random

from .load import MODES, load, questions
from .serving import Served

NUM_CLIENTS = 64
NUM_REQUESTS = 2  # of each
SEED = 20


def test_every_request_ends_with_the_tokens_that_it_gets_alone(served: Served) -> None:
    asked = questions(served.pipeline, 40, random.Random(SEED))
    outcome = asyncio.run(load(f"{served.url}/v1", asked, NUM_CLIENTS, NUM_REQUESTS, SEED))
    assert not outcome.wrong
    assert outcome.answered.total() + outcome.left == NUM_CLIENTS * NUM_REQUESTS
    assert set(outcome.answered) == set(MODES)
