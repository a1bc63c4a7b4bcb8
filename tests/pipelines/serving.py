"""Requests to an engine with a fake target: what they should be answered, and ever new ones."""

from __future__ import annotations

from hypothesis import strategies as st

from outrider.pipelines.config import MODES
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.recycling import TokenRecycling
from outrider.pipelines.speculation.drafters.suffix import Suffix

from . import reference
from .fakes import BLOCK_SIZE, VOCABULARY, FakeModel, acceptance, mixed_rule, new_request, random_rule

RULE = random_rule()
TOKENS = st.integers(0, VOCABULARY - 1)
SAMPLED = {"do_sample": True, "temperature": 1.2, "top_p": 0.95, "repetition_penalty": 1.1}


def plain(request) -> reference.Answer:
    prompt = request.tokens[: request.num_prompt_tokens]
    return reference.decode(RULE, prompt, request.config, request.max_new_tokens, request.answer)


def check(request) -> None:
    expected = plain(request)
    assert request.new_tokens == expected.token_ids
    assert request.finish_reason == expected.finish_reason
    assert len(request.sources) == request.num_new


# A pass costs little more for many rows, and the draft model little: almost every draft is worth trying. Another size
# than that of the last pass costs as much as some rows: many passes are filled.
COST = CostModel((2, 8, 33), (10.0, 12.0, 20.0), (0.0, 0.0, 0.0), {"draft_model": DraftCost(0.3, 0.01)}, change_ms=2.0)


def drafters(seed: int = 0, num_blocks: int = 64) -> tuple[dict, BlockPool]:
    """All that draft from texts and logits, and a draft model that often agrees, with its pool."""
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    model = FakeModel(mixed_rule(RULE, random_rule(1 + seed), 0.3), num_blocks)
    made = {
        "lookup": PromptLookup(), "suffix": Suffix(acceptance()), "recycling": TokenRecycling(VOCABULARY),
        "draft": DraftModel(model, pool, 1000),
    }  # fmt: skip
    return made, pool


@st.composite
def requests(draw, max_size=5):
    prompts = [draw(st.lists(TOKENS, min_size=1, max_size=14))]
    made = []
    for _ in range(draw(st.integers(1, max_size))):
        begin = draw(st.sampled_from(prompts))  # conversations that begin alike, or with what another was answered
        prompts.append([*begin[: draw(st.integers(0, len(begin)))], *draw(st.lists(TOKENS, max_size=9))] or [0])
        options = draw(st.sampled_from([{}, SAMPLED, {**SAMPLED, "rng_seed": 7}, {"frequency_penalty": 1.0}]))
        made.append(
            new_request(
                prompts[-1],
                draw(st.integers(1, 20)),
                draw(st.integers(0, 2)),
                **options,
                mode=draw(st.sampled_from(MODES)),
                num_assistant_tokens=draw(st.none() | st.integers(1, 16)),
                max_ngram_size=draw(st.integers(1, 4)),
                stop_token_ids=draw(st.sets(TOKENS, max_size=2)),
                min_new_tokens=draw(st.integers(0, 3)),
            )
        )
        prompts.append([*prompts[-1], *plain(made[-1]).token_ids])
    return made
