"""Token ids of a fake model, recorded before the folders had their present layout.

A seed that someone has noted gives the same answer in every release and every mode.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from outrider.pipelines.config import MODES
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.request import Request
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.head import Head
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.recycling import TokenRecycling
from outrider.pipelines.speculation.drafters.self_speculative import EXIT, SKIPPING, SelfSpeculative
from outrider.pipelines.speculation.drafters.suffix import Suffix

from .fakes import (
    BLOCK_SIZE,
    FakeHead,
    FakeModel,
    FakeSplit,
    Rule,
    acceptance,
    fake_engine,
    mixed_rule,
    new_request,
    random_rule,
    remembered,
    run,
)
from .serving import COST

# Each has a vocabulary, a prompt, options, the number of the answer and its tokens.
RECORDS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("recorded_tokens.json").read_text(encoding="utf-8"))
NUM_BLOCKS = 512
LENGTH = 32  # most tokens of an answer
BY_ITSELF = {"skip": SKIPPING, "exit": EXIT}  # modes in which the target drafts


@cache
def repetitive_rule(vocabulary: int) -> Rule:
    """Logits that depend above all on the last token, so that answers repeat themselves and can be looked up."""
    rule = remembered(random_rule(vocabulary=vocabulary))
    return remembered(mixed_rule(lambda prefix: rule(prefix[-1:]), rule, 0.15))


@cache
def draft_rule(vocabulary: int) -> Rule:
    return remembered(mixed_rule(repetitive_rule(vocabulary), random_rule(1, vocabulary), 0.3))


def answered(vocabulary: int, mode: str, length: int | None) -> list[tuple[Request, list[int]]]:
    """Requests for all records with this vocabulary, after they were served together, and what they should get.

    length: of every draft; None for as many tokens as pay.
    """
    target = FakeSplit(repetitive_rule(vocabulary), draft_rule(vocabulary), NUM_BLOCKS)
    draft, head = FakeModel(draft_rule(vocabulary), NUM_BLOCKS), FakeHead(target.texts, draft_rule(vocabulary))
    pool, draft_pool, head_pool = (BlockPool(NUM_BLOCKS, BLOCK_SIZE) for _ in range(3))
    drafters = {
        "lookup": PromptLookup(), "suffix": Suffix(acceptance()), "recycling": TokenRecycling(vocabulary),
        "draft": DraftModel(draft, draft_pool, 1000), "head": Head(head, head_pool, vocabulary),
    }  # fmt: skip
    if mode in BY_ITSELF:
        drafters[mode] = SelfSpeculative(BY_ITSELF[mode], target, pool)
    engine, _ = fake_engine(target, drafters, replace(COST), pool)
    records = [record for record in RECORDS if record["vocabulary"] == vocabulary]
    requests = [
        new_request(
            record["prompt"], LENGTH, record["answer"], mode=mode, num_assistant_tokens=length,
            **{**record["options"], "logit_bias": dict(record["options"].get("logit_bias", ()))},
        )
        for record in records
    ]  # fmt: skip
    run(engine, *requests)
    return [(request, record["tokens"]) for request, record in zip(requests, records, strict=True)]


@pytest.mark.parametrize("length", [None, 5])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("vocabulary", [12, 200])
def test_a_seed_gives_the_tokens_that_were_recorded(vocabulary: int, mode: str, length: int | None) -> None:
    answers = answered(vocabulary, mode, length)
    assert len(answers) == len(RECORDS) / 2
    for request, tokens in answers:
        assert request.new_tokens == tokens, request.config
    accepted = sum(request.statistics.accepted for request, _ in answers)
    if length is not None:  # else the planner may find that nothing pays
        assert (accepted > 0) == (mode != "off")
