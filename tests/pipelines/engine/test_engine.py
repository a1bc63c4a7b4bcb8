"""The loop with a fake target that answers from what its cache holds: same tokens always, every block given back."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.engine import scheduler as scheduler_module
from outrider.pipelines.errors import CacheTooSmall
from outrider.pipelines.model.target import Rows

from ..fakes import BLOCK_SIZE, FakeModel, fake_engine, new_request, run
from ..serving import COST, RULE, SAMPLED, check, drafters, plain, requests
from ..speculation.broken_drafters import right, unsteady, wrong


@settings(max_examples=100)
@given(requests(), requests(), st.integers(2, 9), st.integers(1, 12) | st.just(512), st.randoms(use_true_random=False))
def test_batches_cached_prefixes_drafts_and_cuts_change_no_token(first, second, prefill_rows, most_rows, rng):
    some_drafters, draft_pool = drafters(rng.randrange(5))
    model = FakeModel(RULE)
    model.rows = Rows(most=most_rows)  # which no pass exceeds
    engine, pool = fake_engine(model, some_drafters, cost=replace(COST))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_module, "PREFILL_ROWS", prefill_rows)
        for request in first:
            engine.add(request)
            for _ in range(rng.randrange(4)):
                engine.step()
        while any(not request.finished for request in first):
            engine.step()
        run(engine, *second)
    for request in (*first, *second):
        check(request)
    assert pool.num_free == pool.num_blocks
    assert draft_pool.num_free == draft_pool.num_blocks


def test_passes_keep_to_a_size_where_changing_it_costs_more():
    """Some are filled up; no token changes, and nothing of the filling is kept."""
    num_changes, num_filled = [], []
    for change_ms in (0.0, 2.0):
        model, sizes = FakeModel(RULE), []
        model.before_pass = lambda windows, sizes=sizes: sizes.append([len(window.tokens) for window in windows])
        engine, _ = fake_engine(model, {"draft": unsteady(RULE)}, cost=replace(COST, change_ms=change_ms))
        batch = [new_request([1, 2, n], 60, mode="draft", num_assistant_tokens=None) for n in range(2)]
        run(engine, *batch)
        for request in batch:
            check(request)
        num_changes.append(sum(sum(a) != sum(b) for a, b in itertools.pairwise(sizes)))
        num_filled.append(sum(len(size) > len(batch) for size in sizes))
    assert num_filled[0] == 0
    assert num_filled[1] > 0
    assert num_changes[1] < num_changes[0]


def test_plain_answers_are_never_filled():
    """After passes of any size, which would otherwise decide on their last bits where these depend on the rows."""
    model, sizes = FakeModel(RULE), []
    model.before_pass = lambda windows: sizes.append([len(window.tokens) for window in windows])
    engine, _ = fake_engine(model, {"draft": right(RULE)}, cost=replace(COST, change_ms=50.0))
    run(engine, new_request([1, 2, 3], 30, mode="draft", num_assistant_tokens=None))
    assert max(map(sum, sizes)) > 2
    sizes.clear()
    run(engine, new_request([4, 5, 6, 7], 12, mode="off"))
    assert sizes == [[4], *[[1]] * 11]


def test_a_draft_that_is_always_right_saves_passes_and_one_always_wrong_costs_none():
    passes = {}
    for name, make in {"off": None, "right": right, "wrong": wrong}.items():
        model = FakeModel(RULE)
        engine, _ = fake_engine(model, {"draft": make(RULE)} if make else {})
        request = new_request([1, 2, 3], 24, mode="draft", num_assistant_tokens=5, **SAMPLED)
        run(engine, request)
        check(request)
        statistics = request.statistics
        passes[name] = model.num_passes
        assert statistics.passes == model.num_passes
        assert statistics.new_tokens == 24
        assert (statistics.accepted > 0) == (name == "right")
        if name == "right":
            assert statistics.accepted == statistics.drafted == 19
            assert statistics.accepted_by == statistics.drafted_by == {"test": 19}
            assert request.sources == ["target", *[*["test"] * 5, "target"] * 3, *["test"] * 4, "target"]
        if name == "wrong":
            assert statistics.drafted > 0
            assert set(request.sources) == {"target"}
    assert passes == {"off": 24, "right": 5, "wrong": 24}


@pytest.mark.parametrize("depth", range(1, 8))
def test_a_stop_inside_a_draft_ends_the_answer_there(depth):
    expected = plain(new_request([5, 6], 24, **SAMPLED)).token_ids
    stop = expected[depth]
    engine, pool = fake_engine(FakeModel(RULE), {"draft": right(RULE)})
    request = new_request([5, 6], 24, mode="draft", num_assistant_tokens=16, stop_token_ids={stop}, **SAMPLED)
    run(engine, request)
    assert request.new_tokens == expected[: expected.index(stop) + 1]
    assert request.finish_reason == "stop"
    assert request.statistics.new_tokens == len(request.new_tokens)
    assert pool.num_free == pool.num_blocks


@pytest.mark.parametrize("max_new_tokens", range(1, 10))
def test_a_length_reached_inside_a_draft_ends_the_answer_there(max_new_tokens):
    model = FakeModel(RULE)
    engine, _ = fake_engine(model, {"draft": right(RULE)})
    request = new_request([5, 6], max_new_tokens, mode="draft", num_assistant_tokens=16)
    run(engine, request)
    check(request)
    assert request.finish_reason == "length"
    assert model.num_passes == min(2, max_new_tokens)
    assert max(w.start + len(w.tokens) for w in model.windows) <= 2 + max_new_tokens, "drafted past the end"


def test_a_request_that_could_never_run_is_refused_with_what_to_do():
    engine, pool = fake_engine(FakeModel(RULE, num_blocks=4))
    with pytest.raises(CacheTooSmall, match=r"17 tokens \(7 of the prompt and up to 10 new ones\).*cache_tokens=17"):
        engine.add(new_request(range(7), 10))
    assert pool.num_free == 4
    fits = new_request(range(7), 9)
    run(engine, fits)
    check(fits)


@pytest.mark.parametrize("max_new_tokens", range(6, 12))
def test_what_one_conversation_computed_the_next_turn_takes_over(max_new_tokens):
    """All but the answer's last token, which was never fed."""
    engine, _ = fake_engine(FakeModel(RULE))
    first = new_request(range(10), max_new_tokens)
    run(engine, first)
    second = new_request([*first.tokens, 1, 2, 3], 9, mode="draft")
    run(engine, second)
    check(second)
    assert second.statistics.cached_tokens == (10 + max_new_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_a_sequence_takes_nothing_past_its_length_or_its_stop():
    short, stopped = new_request([1], 3), new_request([1], 9, stop_token_ids={7})
    for request in (short, stopped):
        request.extend([5, 6, 7, 8, 9], ["a", "b", "c", "d", "target"])
        assert (request.new_tokens, request.sources) == ([5, 6, 7], ["a", "b", "c"])
    assert (short.finish_reason, stopped.finish_reason) == ("length", "stop")


def test_only_blocks_full_of_accepted_tokens_are_taken_over():
    """A prompt may end where another request's rejected drafts stood."""
    engine, _ = fake_engine(FakeModel(RULE), {"draft": wrong(RULE)})
    first = new_request(range(6), 16, mode="draft", num_assistant_tokens=16)
    run(engine, first)
    for end in range(1, len(first.tokens) + 1):
        both = [new_request(first.tokens[:end], 6, mode="draft", rng_seed=seed, **SAMPLED) for seed in range(2)]
        run(engine, *both)
        for request in both:
            check(request)
            assert request.statistics.cached_tokens <= end


def test_figures_add_up():
    rng = random.Random(3)
    engine, _ = fake_engine(FakeModel(RULE), {"draft": unsteady(RULE, rng.randrange(9))})
    request = new_request([1, 2, 3], 30, mode="draft", **SAMPLED)
    run(engine, request)
    statistics = request.statistics
    assert statistics == replace(statistics, prompt_tokens=3, cached_tokens=0, new_tokens=30)
    assert statistics.accepted == sum(source != "target" for source in request.sources)
    assert 0 < statistics.accepted < statistics.drafted
    assert statistics.passes == statistics.new_tokens - statistics.accepted
    assert 0 < statistics.ttft_s <= statistics.total_s
