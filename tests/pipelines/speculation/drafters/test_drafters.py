"""The drafters alone: what they propose is what their method says, whatever was drafted, kept or forgotten before."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.sampling import choose_token
from outrider.pipelines.speculation.acceptance import AcceptanceModel
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.suffix import PRIORS, Suffix

from ... import reference
from ...fakes import BLOCK_SIZE, FakeModel, fake_engine, mixed_rule, new_request, random_rule, run

RULE = random_rule(5)
SAMPLED = {"do_sample": True, "temperature": 1.1, "top_k": 8, "presence_penalty": 0.5, "rng_seed": 3}


def draft(drafter, request, limit: int, ahead: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The first `limit` tokens that a drafter proposes."""
    proposals = list(islice(drafter.propose(request, ahead), limit))
    assert all(proposal.source == drafter.name for proposal in proposals)
    return tuple(proposal.token for proposal in proposals)


def naive_lookup(tokens: list[int], max_ngram_size: int, limit: int, ahead: Sequence[int] = ()) -> list[int]:
    text = [*tokens, *ahead]
    for size in range(max_ngram_size, 0, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == text[-size:]:
                return tokens[end : end + limit]
    return []


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=12),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=6),
    st.integers(1, 5),
    st.integers(1, 9),
    st.lists(st.integers(0, 3), max_size=6),
)
def test_lookup_finds_what_a_naive_search_finds(prompt, growth, max_ngram_size, limit, ahead):
    lookup, request = PromptLookup(), new_request(prompt, 100, max_ngram_size=max_ngram_size)
    for more in [[], *growth]:
        request.tokens += more
        for behind in ([], ahead):
            expected = tuple(naive_lookup(request.tokens, max_ngram_size, limit, behind))
            assert draft(lookup, request, limit, tuple(behind)) == expected


def texts_of_any_kind(rng: random.Random, length: int) -> dict[str, list[int]]:
    """Natural texts are between these."""
    pattern = [rng.randrange(5) for _ in range(40)]
    often = [rng.choice([1, 1, 1, 1, rng.randrange(9)]) for _ in range(length)]
    once = [rng.randrange(10**5) for _ in range(length // 2)]
    return {
        "one token": [7] * length,
        "few tokens": [rng.randrange(2) for _ in range(length)],
        "mostly one token": often,
        "runs of growing lengths": [t for n in range(60) for t in [*[1] * n, 2]][:length],
        "repeated with changes": [t if rng.random() < 0.95 else rng.randrange(5) for t in pattern * length][:length],
        "twice the same": once * 2,
        "ascending": [*range(length // 2)] * 2,
        "descending": [*range(length // 2, 0, -1)] * 2,
        "numbered": [t for n in range(length // 2) for t in (3, 987 * n)],
    }


@pytest.mark.parametrize("max_ngram_size", [1, 2, 3, 8, 31, 32])
@pytest.mark.parametrize("seed", range(2))
def test_lookup_finds_it_in_texts_of_any_kind(max_ngram_size, seed):
    rng = random.Random(seed)
    for kind, text in texts_of_any_kind(rng, 260).items():
        lookup, request = PromptLookup(), new_request(text[:50], 500, max_ngram_size=max_ngram_size)
        while len(request.tokens) < len(text):
            request.tokens += text[len(request.tokens) :][: rng.randint(1, 9)]
            copied = rng.randrange(len(request.tokens))
            for ahead in ([], request.tokens[copied : copied + rng.randint(1, 40)]):
                expected = tuple(naive_lookup(request.tokens, max_ngram_size, 3, ahead))
                assert draft(lookup, request, 3, tuple(ahead)) == expected, kind


class Counted(int):
    """A token that counts how often any is compared."""

    comparisons = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) == other


@pytest.mark.slow
@pytest.mark.parametrize("kind", texts_of_any_kind(random.Random(0), 2))
def test_lookup_compares_few_tokens_whatever_the_text(kind):
    """The naive search compares thousands for each."""
    text = texts_of_any_kind(random.Random(0), 4000)[kind]
    lookup, request = PromptLookup(), new_request([], 100, max_ngram_size=32)
    worst = total = 0
    for token in text:
        request.tokens.append(Counted(token))
        Counted.comparisons = 0
        list(islice(lookup.propose(request), 1))
        worst, total = max(worst, Counted.comparisons), total + Counted.comparisons
    assert worst < 1000
    assert total < 300 * len(text)


def test_the_memory_of_lookup_does_not_grow_with_the_longest_ngram():
    taken = []
    text = [random.Random(0).randrange(300) for _ in range(4000)]
    for size in (3, 32):
        lookup, request = PromptLookup(), new_request(text, 100, max_ngram_size=size)
        tracemalloc.start()
        list(lookup.propose(request))
        taken.append(tracemalloc.get_traced_memory()[0] / len(text))
        tracemalloc.stop()
    assert max(taken) < 60, "bytes for each token"


@pytest.mark.parametrize("kind", ["lookup", "suffix"])
@pytest.mark.parametrize("num_earlier", [0, 3, 6, 10])
def test_what_is_copied_from_earlier_turns_is_told_from_what_is_copied_from_this_one(kind, num_earlier):
    """Also where a copy goes on over the border."""
    drafter = PromptLookup() if kind == "lookup" else Suffix(AcceptanceModel(PRIORS))
    request = new_request([*range(20, 30), 20, 21], 100)
    request.num_earlier_tokens = num_earlier
    for ahead in ([], [22, 23, 24]):
        at = 2 + len(ahead)  # what is copied next
        proposals = list(islice(drafter.propose(request, ahead), 10 - at))
        assert [proposal.token for proposal in proposals] == list(range(20 + at, 30))
        from_earlier = [proposal.source == "earlier_turn" for proposal in proposals]
        assert from_earlier == [position < num_earlier for position in range(at, 10)]
        assert {proposal.source for proposal in proposals} <= {"earlier_turn", drafter.name}


def test_lookup_keeps_sequences_apart_and_forgets_them():
    lookup = PromptLookup()
    one, other = new_request([1, 2, 3, 1, 2]), new_request([1, 2, 9, 1, 2])
    assert draft(lookup, one, 1) == (3,)
    assert draft(lookup, other, 1) == (9,)
    lookup.release(one)
    lookup.release(other)
    lookup.release(new_request([1]))
    assert vars(lookup) == vars(PromptLookup())


def cold(request, limit: int, ahead: tuple[int, ...] = (), begin: int = 0) -> tuple[int, ...]:
    """What a draft model with an empty cache writes that reads the text from `begin` on."""
    tokens = [*request.tokens, *ahead]
    for _ in range(limit):
        logits = RULE(tokens[begin:])
        tokens.append(choose_token(logits, tokens, request.num_prompt_tokens, request.config, request.answer))
    return tuple(tokens[-limit:])


class OneRowModel(FakeModel):
    """A fake whose logits do not mind how many rows a window has."""

    def _logits(self, window):
        end = window.start + len(window.tokens)
        prefix = self._slots[list(window.blocks)].reshape(-1)[:end]
        assert (prefix >= 0).all(), "a slot is read that was never written"
        return np.array([self.rule(prefix[: end - back].tolist()) for back in reversed(range(window.num_rows))])


@pytest.mark.slow
@given(st.data())
def test_the_draft_model_proposes_what_it_would_with_an_empty_cache(data):
    """Through acceptances, rejections, steps without a draft, texts beyond its context, requests that come and go."""
    token = st.integers(0, 11)
    pool = BlockPool(24, BLOCK_SIZE)
    drafter = DraftModel(OneRowModel(RULE, 24), pool, max_context=60)
    live = []
    for _ in range(data.draw(st.integers(1, 12))):
        if not live or data.draw(st.booleans()):
            begin = data.draw(st.sampled_from([s.tokens for s in live] or [[7, 7, 7, 7, 7]]))
            prompt = [*begin[: data.draw(st.integers(0, 12))], *data.draw(st.lists(token, max_size=4))] or [0]
            live.append(new_request(prompt, 100, data.draw(st.integers(0, 2)), **SAMPLED))
        request = data.draw(st.sampled_from(live))
        limit = data.draw(st.integers(1, 6))
        ahead = tuple(data.draw(st.lists(token, max_size=3)))
        proposed = ahead
        for proposal in islice(drafter.propose(request, ahead), limit):
            assert (proposal.token,) == cold(request, 1, proposed, drafter._progress[request].begin)
            proposed += (proposal.token,)
        assert len(proposed) == len(ahead) + limit or pool.num_free < pool.blocks_for(60)
        kept = data.draw(st.integers(0, len(proposed)))
        request.tokens += [*proposed[:kept], *data.draw(st.lists(token, min_size=1, max_size=2))]
        if data.draw(st.integers(0, 3)) == 0:
            live.remove(request)
            drafter.release(request)
    for request in live:
        drafter.release(request)
    assert pool.num_free == pool.num_blocks
    assert drafter._progress == {}


def test_the_draft_model_computes_no_token_twice_but_what_was_rejected():
    model = OneRowModel(RULE)
    drafter = DraftModel(model, BlockPool(64, BLOCK_SIZE), 1000)
    request = new_request(range(9), 100)
    drafted = draft(drafter, request, 4)
    assert drafter.num_behind(request) == 1
    request.tokens += (*drafted[:2], (drafted[2] + 1) % 12)
    model.windows.clear()
    assert drafter.num_behind(request) == 1
    draft(drafter, request, 1)
    assert [(window.start, len(window.tokens)) for window in model.windows] == [(11, 1)]
    request.tokens += [3, 4, 5]
    assert drafter.num_behind(request) == 3
    assert drafter.num_behind(request, [1, 2]) == 5
    drafter.score([(request, [1, 2])])
    assert drafter.num_behind(request, [1, 2]) == 1
    assert drafter.num_behind(request, [1, 2, 7]) == 1
    assert drafter.num_behind(request, [1, 2, 7, 8]) == 2
    assert drafter.num_behind(request, [1, 5, 6]) == 2
    assert drafter.num_behind(new_request([1, *range(8)], 100)) == 9


def test_the_draft_model_is_not_behind_with_what_it_read_for_another():
    drafter = DraftModel(OneRowModel(RULE), BlockPool(64, BLOCK_SIZE), 1000)
    first = new_request(range(9), 100)
    draft(drafter, first, 1)
    drafter.release(first)
    assert drafter.num_behind(new_request([*range(9), 3], 100)) == 10 - 2 * BLOCK_SIZE
    assert drafter.num_behind(new_request([1, *range(8)], 100)) == 9


def test_the_draft_model_works_for_no_proposal_that_is_not_taken():
    model = OneRowModel(RULE)
    proposals = DraftModel(model, BlockPool(64, BLOCK_SIZE), 1000).propose(new_request(range(9), 100))
    assert model.num_passes == 0
    for expected in range(1, 4):
        next(proposals)
        assert model.num_passes == expected


@given(st.lists(st.integers(0, 11), min_size=1, max_size=9), st.lists(st.integers(0, 11), max_size=9), st.data())
def test_the_draft_model_reads_in_one_pass_what_it_would_write_token_by_token(prompt, ahead, data):
    model = OneRowModel(RULE)
    drafter = DraftModel(model, BlockPool(64, BLOCK_SIZE), 1000)
    requests = [new_request(prompt, 100, **SAMPLED), new_request([*prompt, 3], 100)]
    for request in requests:
        draft(drafter, request, data.draw(st.integers(0, 3)))
    before = model.num_passes
    read = drafter.score([(request, ahead) for request in requests])
    assert model.num_passes == before + 1
    for request, scores in zip(requests, read, strict=True):
        places = range(len(ahead) + 1)
        assert [score.proposal.token for score in scores] == [cold(request, 1, (*ahead[:i],))[0] for i in places]
        for score, place, token in zip(scores, places, ahead, strict=False):
            logits = RULE([*request.tokens, *ahead[:place]]) / (1.1 if request.config.do_sample else 1.0)
            p = np.exp(logits[token]) / np.exp(logits).sum()
            assert score.log_odds == pytest.approx(np.clip(np.log(p / (1 - p)), -8, 8), abs=1e-3)


def test_what_was_drafted_and_rejected_is_not_offered_to_other_sequences():
    drafter = DraftModel(OneRowModel(RULE), BlockPool(64, BLOCK_SIZE), 1000)
    first = new_request(range(7), 100)
    drafted = draft(drafter, first, 7)
    first.tokens += ((drafted[0] + 1) % 12,)
    draft(drafter, first, 7)
    for end in range(1, 8):
        other = new_request([*range(7), *drafted[:end], 5], 100)
        assert draft(drafter, other, 2) == cold(other, 2)


def test_the_draft_model_is_silent_where_its_cache_is_full():
    pool = BlockPool(2, BLOCK_SIZE)
    drafter = DraftModel(OneRowModel(RULE, 2), pool, max_context=1000)
    request = new_request([1, 2, 3, 4, 5], 100)
    assert len(draft(drafter, request, 5)) == 2 * BLOCK_SIZE - 5 + 1
    other = new_request([9, 9, 9, 9, 9], 100)
    assert draft(drafter, other, 2) == ()
    drafter.release(request)
    assert len(draft(drafter, other, 2)) == 2
    other.tokens += [1, 1, 1, 1]
    assert draft(drafter, other, 2) == ()
    drafter.release(other)
    assert pool.num_free == 2


def test_the_draft_model_reads_the_last_tokens_of_a_long_text_unless_it_knows_those_before():
    model = OneRowModel(RULE)
    drafter = DraftModel(model, BlockPool(64, BLOCK_SIZE), 1000, reach=10)
    first = new_request(range(30), 100)
    assert drafter.num_behind(first) == 10
    assert draft(drafter, first, 3) == cold(first, 3, begin=20)
    assert sum(len(window.tokens) for window in model.windows) == 10 + 2
    short = new_request(range(7), 100)
    draft(drafter, short, 1)
    known = new_request(range(14), 100)
    assert drafter.num_behind(known) == 14 - BLOCK_SIZE
    assert draft(drafter, known, 2) == cold(known, 2, begin=0)
    known.tokens += range(20)
    assert drafter.num_behind(known) == 20
    assert draft(drafter, known, 2) == cold(known, 2, begin=0)


def test_the_draft_model_begins_anew_where_its_context_is_full():
    drafter = DraftModel(OneRowModel(RULE), BlockPool(64, BLOCK_SIZE), max_context=20, reach=8)
    request = new_request(range(8), 100)
    draft(drafter, request, 2)
    for length in range(9, 60):
        request.tokens += [100 + length]
        begin, behind = drafter._progress[request].begin, drafter.num_behind(request)
        assert behind == (1 if length - begin < 20 else 8)
        assert len(draft(drafter, request, 1)) == 1
        assert drafter._progress[request].begin == (begin if behind == 1 else length - 8)
    drafter.release(request)
    assert drafter._pool.num_free == 64


def test_the_draft_model_goes_on_after_a_pass_that_failed():
    model = OneRowModel(RULE)
    drafter = DraftModel(model, BlockPool(64, BLOCK_SIZE), 1000)
    request = new_request(range(9), 100)
    draft(drafter, request, 3)
    request.tokens += [5, 5]
    calls = iter([None, RuntimeError("once")])

    def fail(windows):
        if error := next(calls, None):
            raise error

    model.before_pass = fail
    with pytest.raises(RuntimeError, match="once"):
        draft(drafter, request, 4)
    assert draft(drafter, request, 4) == cold(request, 4)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_two_models_that_share_the_noise_agree_as_often_as_they_should(share):
    """At least (1 - TV) / (1 + TV) of the time (Daliri et al., arXiv 2408.07978), by five standard errors' leave."""
    other = mixed_rule(RULE, random_rule(6), share)
    agreed, bound = [], []
    for seed in range(3000):
        prefix = [seed % 12, seed // 12 % 12, 3]
        config = new_request(prefix, do_sample=True, rng_seed=seed).config
        rows = [rule(prefix) for rule in (RULE, other)]
        first, second = (choose_token(logits, prefix, 3, config) for logits in rows)
        odds = [reference.probabilities(dict(enumerate(logits.tolist()))) for logits in rows]
        distance = sum(abs(odds[0][t] - odds[1][t]) for t in odds[0]) / 2
        agreed.append(first == second)
        bound.append((1 - distance) / (1 + distance))
    assert np.mean(agreed) > np.mean(bound) - 5 * 0.5 / 3000**0.5
    assert 0 < np.mean(agreed) < 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.5, "top_p": 0.8}], ids=str)
def test_two_tokens_under_a_draft_model_follow_the_targets_distribution(options):
    """The second is drafted, and kept or corrected: neither may bend the distribution of the pair."""
    rng = random.Random(1)
    target = random_rule(11, vocabulary=5)
    drafter = DraftModel(OneRowModel(mixed_rule(target, random_rule(12, 5), 0.4)), BlockPool(64, BLOCK_SIZE), 1000)
    engine, _ = fake_engine(FakeModel(target), {"draft": drafter})
    prompt, num_draws = [1, 2, 3], 2000
    config = new_request(prompt, do_sample=True, **options).config
    count: dict[tuple[int, ...], int] = {}
    accepted = 0
    for _ in range(num_draws):
        request = new_request(prompt, 3, do_sample=True, mode="draft", rng_seed=rng.getrandbits(64), **options)
        run(engine, request)
        both = tuple(request.new_tokens[:2])
        count[both] = count.get(both, 0) + 1
        accepted += request.sources[1] != "target"

    def odds(prefix: list[int]) -> dict[int, float]:
        scores = reference.penalize(target(prefix).tolist(), prompt, prefix[3:], config)
        return reference.probabilities(reference.survivors(scores, config))

    joint = {(a, b): p * q for a, p in odds(prompt).items() for b, q in odds([*prompt, a]).items()}
    assert count.keys() <= joint.keys()
    rare = [pair for pair in joint if joint[pair] * num_draws < 5]
    usual = [pair for pair in joint if pair not in rare]
    observed = [count.get(pair, 0) for pair in usual] + [sum(count.get(pair, 0) for pair in rare)]
    expected = [joint[pair] * num_draws for pair in usual] + [sum(joint[pair] for pair in rare) * num_draws]
    filled = [i for i, n in enumerate(expected) if n > 0]
    assert stats.chisquare([observed[i] for i in filled], [expected[i] for i in filled]).pvalue > 1e-4
    assert 0.2 * num_draws < accepted < num_draws
