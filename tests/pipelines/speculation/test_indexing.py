"""Long texts are indexed for drafting only where every answer in the pass may lose that time."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.speculation.acceptance import AcceptanceModel
from outrider.pipelines.speculation.budgets import ALLOWANCE, TOLERANCE
from outrider.pipelines.speculation.draft import Draft
from outrider.pipelines.speculation.drafter_set import FIRST_INDEXING_MS, MANY
from outrider.pipelines.speculation.drafters import suffix
from outrider.pipelines.speculation.drafters.base import IndexingDrafter
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.suffix import Suffix

from ..fakes import new_request
from .odds import Clock, OddsDrafter
from .planning import BASES, Losses, cost_of, draft_of, planner_of


class Indexed(OddsDrafter):
    """Takes `token_ms` to index a token, and does so before it proposes, which takes `asking_ms`."""

    def __init__(self, clock: Clock, token_ms: float, asking_ms: float = 0.0) -> None:
        super().__init__("suffix", {})
        self.clock, self.token_ms, self.asking_ms = clock, token_ms, asking_ms
        self.num_indexed: dict = {}

    def num_unindexed(self, request) -> int:
        return len(request.tokens) - self.num_indexed.get(request, 0)

    def index(self, request) -> None:
        self.clock.now += self.num_unindexed(request) * self.token_ms / 1e3
        self.num_indexed[request] = len(request.tokens)

    def propose(self, request, ahead=()):
        self.index(request)
        self.clock.now += self.asking_ms / 1e3
        yield from super().propose(request, ahead)


class Uncounted(Indexed):
    def num_unindexed(self, request) -> int:
        raise RuntimeError("no number")


class Broken(Indexed):
    def index(self, request) -> None:
        raise RuntimeError("no index")


def draft_behind(num_tokens: int) -> Draft:
    """A draft of an answer to a prompt of so many tokens."""
    request = new_request([3] * num_tokens, 9999, mode="auto", num_assistant_tokens=None)
    return Draft(request, num_tokens - 1, 32)


@given(
    BASES.map(lambda base: [10 + ms for ms in base]),
    st.floats(1e-3, 1e-2),
    st.sampled_from([0.0, 0.5, 4.0]),
    st.lists(st.integers(1, 20_000), min_size=1, max_size=6),
    st.integers(1, 60),
    st.sampled_from(["auto", "off"]),
)
def test_no_answer_beside_new_prompts_is_delayed_beyond_the_bound(base, token_ms, asking_ms, prompts, num_passes, mode):
    """By the clock, once the time for a token is known; each prompt begins some passes after the last. What is not
    counted is the time for the few tokens that are indexed by asking."""
    clock = Clock()
    text, cost = Indexed(clock, token_ms, asking_ms), cost_of(base)
    planner = planner_of(cost, text, clock=clock)
    for _ in range(3):
        known = draft_behind(64)
        text.odds[known.request] = []
        planner.draft([known])
        planner.observe([known], [[3]], None)
        planner.release(known.request)
    first = draft_of(mode=mode)
    text.odds[first.request] = []
    plain_ms = [cost.pass_ms([(1, 0)] * n) for n in (1, 2)]
    drafted_ms = max(plain_ms) + cost.row_ms(2, 1, 2) + cost.changing_ms
    few_ms = (MANY - 1) * token_ms * (1 + len(prompts))
    losses = Losses(1, min(plain_ms), ALLOWANCE * drafted_ms + few_ms)
    for num_tokens in prompts:
        other = draft_behind(num_tokens)
        text.odds[other.request] = []
        for _ in range(num_passes):
            began = clock.now
            planner.draft([first, other])
            losses.passed(1e3 * (clock.now - began), [[3]])
            planner.observe([first, other], [[3], [3]], None)
        planner.release(other.request)


@pytest.mark.parametrize(("num_tokens", "first"), [(30, 0), (2000, 0), (20_000, None)])
def test_a_prompt_is_indexed_when_its_answer_may_lose_as_much(num_tokens, first):
    """In the first pass where the budget is enough for that, and in a later one where it is not; copies are followed
    from there on."""
    clock, draft = Clock(), draft_behind(num_tokens)
    text, cost = Indexed(clock, 2e-3), cost_of([10, 10.2, 10.4, 10.8, 11.4, 14])
    text.odds[draft.request] = [0.95] * 8
    planner, lengths = planner_of(cost, text, clock=clock), []
    for _ in range(200):
        draft.cut(0)
        planner.draft([draft])
        lengths.append(len(draft.proposals))
        planner.observe([draft], [[*draft.tokens, 3]], None)
    found = next(i for i, length in enumerate(lengths) if length)
    if first is None:
        first = (num_tokens * FIRST_INDEXING_MS - ALLOWANCE * 10.2) / (TOLERANCE * 10)
    assert found == pytest.approx(first, abs=4 if first else 0)
    assert all(lengths[found:])


@pytest.mark.parametrize("kind", [Uncounted, Broken])
def test_a_drafter_that_fails_to_index_is_left_out_and_the_answer_goes_on(kind):
    """And what others take is not learnt from it."""
    clock = Clock()
    text = kind(clock, 1e-3)
    planner = planner_of(cost_of([10, 10.2, 10.4, 10.8, 11.4, 14]), text, clock=clock)
    for _ in range(3):
        draft = draft_behind(100)
        text.odds[draft.request] = [0.95] * 8
        for _ in range(2):
            planner.draft([draft])
            assert not draft.proposals
            planner.observe([draft], [[3]], None)
        planner.release(draft.request)
    assert planner._drafters._indexing_ms.value == FIRST_INDEXING_MS


@pytest.mark.parametrize("drafter_of", [lambda: Suffix(AcceptanceModel(suffix.PRIORS)), PromptLookup])
def test_what_is_indexed_beforehand_is_what_a_proposal_would_index(drafter_of):
    """However much is indexed at a time; and then nothing is left."""
    rng = random.Random(5)
    request = new_request([rng.randrange(3) for _ in range(40)], 999)
    drafter = drafter_of()
    assert isinstance(drafter, IndexingDrafter)
    for _ in range(30):
        assert drafter.num_unindexed(request) > 0
        drafter.index(request)
        assert drafter.num_unindexed(request) <= 1  # the last may have to wait for the token after it
        proposals = list(islice(drafter.propose(request), 8))
        assert proposals == list(islice(drafter_of().propose(request), 8))
        request.tokens += [rng.randrange(3) for _ in range(rng.randrange(2, 100))]
    drafter.release(request)
    assert drafter.num_unindexed(request) == len(request.tokens)
