"""The loop with a fake target that answers from what its cache holds: same tokens always, every block given back."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.engine import scheduler as scheduler_module
from outrider.pipelines.errors import CacheTooSmall
from outrider.pipelines.model.paged_model import Rows

from ..fakes import BLOCK_SIZE, FakeModel, fake_engine, new_request, run
from ..serving import COST, RULE, SAMPLED, check, drafters, plain, requests
from ..speculation.broken_drafters import right, unsteady, wrong


@settings(max_examples=150)
@given(
    requests(), requests(), st.integers(2, 9), st.integers(1, 12) | st.just(512), st.randoms(use_true_random=False)
)
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


def test_nothing_is_read_twice():
    for prompt_length in range(1, 12):
        model = FakeModel(RULE)
        engine, _ = fake_engine(model)
        run(engine, new_request(range(prompt_length), 6, mode="off"))
        lengths = [len(window.tokens) for window in model.windows]
        assert lengths == [prompt_length, *[1] * 5]


@pytest.mark.parametrize(
    ("prompt_length", "lengths"), [(7, [7]), (8, [8]), (9, [8, 1]), (10, [8, 2]), (16, [8, 8]), (17, [8, 8, 1])]
)
def test_a_long_prompt_is_fed_in_as_few_passes_as_can_be(monkeypatch, prompt_length, lengths):
    monkeypatch.setattr(scheduler_module, "PREFILL_ROWS", 8)
    model = FakeModel(RULE)
    engine, _ = fake_engine(model, {"draft": right(RULE)})
    run(engine, new_request([1] * prompt_length, 1, mode="draft"))
    assert [len(window.tokens) for window in model.windows] == lengths


@pytest.mark.parametrize(
    ("prompt_lengths", "in_tiles", "otherwise"),
    [
        ([64], [[64]], [[64]]),
        ([150], [[128], [22]], [[150]]),
        ([60, 40], [[60, 4], [1, 32], [1, 4]], [[60, 40]]),
        ([60, 20, 20], [[60, 4], [1, 16, 16], [1, 1, 4]], [[60, 20, 20]]),
        ([600], [[512], [64], [24]], [[512], [88]]),
    ],
)
def test_prompts_are_read_in_whole_tiles_where_a_part_of_one_costs_as_much(prompt_lengths, in_tiles, otherwise):
    """What is left of them is read beside the first answers, 32 tokens a pass."""
    for is_tiled, passes in ((True, in_tiles), (False, otherwise)):
        model = FakeModel(RULE, num_blocks=256)
        engine, _ = fake_engine(model, cost=replace(COST, is_tiled=is_tiled))
        seen: list[list[int]] = []
        model.before_pass = lambda windows, seen=seen: seen.append([len(window.tokens) for window in windows])
        run(engine, *(new_request([n] * length, 3, mode="off") for n, length in enumerate(prompt_lengths)))
        answers = [[1] * len(prompt_lengths)] * 2  # each has three tokens, of which reading gave the first
        assert seen[: len(passes)] == passes
        assert is_tiled or seen[len(passes) :] == answers


def test_more_requests_than_the_cache_holds_wait_their_turn_and_all_end():
    model = FakeModel(RULE, num_blocks=8)
    some_drafters, _ = drafters(num_blocks=8)
    engine, pool = fake_engine(model, some_drafters)
    most = []
    model.before_pass = lambda windows: most.append(len(windows))
    made = [new_request([n, 1, 1], 9, mode=("off", "lookup", "draft")[n % 3]) for n in range(10)]
    run(engine, *made)
    for request in made:
        check(request)
    assert 2 < max(most) < 10
    assert pool.num_free == 8


@settings(max_examples=100)
@given(requests(), st.integers(0, 12), st.randoms(use_true_random=False))
def test_requests_that_are_put_back_for_want_of_blocks_end_with_the_same_tokens(made, spare, rng):
    longest = max(-(-request.num_slots // BLOCK_SIZE) for request in made)
    num_blocks = longest + spare
    some_drafters, draft_pool = drafters(num_blocks=num_blocks)
    engine, pool = fake_engine(FakeModel(RULE, num_blocks), some_drafters, cost=replace(COST))
    for request in made:
        engine.add(request)
        for _ in range(rng.randrange(3)):
            engine.step()
    run(engine)
    while any(not request.finished for request in made):
        engine.step()
    for request in made:
        check(request)
    assert (pool.num_free, draft_pool.num_free) == (num_blocks, num_blocks)


def test_the_youngest_gives_way_and_none_starves():
    model = FakeModel(RULE, num_blocks=6)
    engine, pool = fake_engine(model)
    made = [new_request([n], 19) for n in range(3)]
    ended = []
    for request in made:
        engine.add(request)
    for _ in range(200):
        engine.step()
        ended += [request for request in made if request.finished and request not in ended]
    assert ended == made
    assert model.num_passes < 3 * 19 + 10
    for request in made:
        check(request)
    assert pool.num_free == 6


def test_requests_that_begin_alike_compute_the_beginning_once():
    model = FakeModel(RULE)
    engine, pool = fake_engine(model)
    made = [new_request([*range(12), *range(12), n], 4, answer=n) for n in range(5)]
    run(engine, *made)
    for request in made:
        check(request)
    fed = sum(len(window.tokens) for window in model.windows if len(window.tokens) > 2)
    assert fed <= 25 + 4 * BLOCK_SIZE
    assert pool.num_free == pool.num_blocks


def test_a_request_whose_beginning_another_was_computing_goes_on_when_that_one_is_dropped():
    engine, pool = fake_engine(FakeModel(RULE))
    first, second = new_request(range(11), 4), new_request(range(11), 4)
    for request in (first, second):
        engine.add(request)
    engine.step()
    engine.cancel(first)
    run(engine, new_request([5], 3))
    while not second.finished:
        engine.step()
    check(second)
    assert pool.num_free == pool.num_blocks


def test_a_long_prompt_holds_running_answers_up_by_one_chunk_a_pass(monkeypatch):
    monkeypatch.setattr(scheduler_module, "PREFILL_ROWS_BESIDE_DECODING", 8)
    model = FakeModel(RULE, num_blocks=128)
    engine, _ = fake_engine(model)
    running = new_request([1, 2, 3], 60)
    engine.add(running)
    engine.step()
    longest = []
    model.before_pass = lambda windows: longest.append(sum(len(window.tokens) for window in windows))
    late = [new_request([n, *[7] * 99], 5) for n in range(2)]
    for request in late:
        engine.add(request)
    for _ in range(40):
        before = running.num_new
        engine.step()
        assert running.num_new == before + 1, "an answer waited for another's prompt"
    assert max(longest) <= 2 + 8 + 2
    run(engine)
    while not all(request.finished for request in (running, *late)):
        engine.step()
    for request in (running, *late):
        check(request)


@pytest.mark.parametrize("mode", ["off", "draft", "auto"])
@pytest.mark.parametrize("num_assistant_tokens", [None, 5])
def test_more_answers_than_a_pass_has_rows_for_take_turns_and_prompts_are_read_meanwhile(mode, num_assistant_tokens):
    model = FakeModel(RULE, num_blocks=256)
    model.rows = Rows(most=6)
    some_drafters, _ = drafters(num_blocks=256)
    engine, pool = fake_engine(model, some_drafters, cost=replace(COST))
    options = {"mode": mode, "num_assistant_tokens": num_assistant_tokens}
    running = [new_request([n, 1], 30, **options) for n in range(10)]
    for request in running:
        engine.add(request)
    while not all(request.num_new for request in running):
        engine.step()
    late = new_request([3] * 40, 4, **options)
    engine.add(late)
    before = {request: len(request.trace) for request in running}
    behind = []
    while not late.finished:
        engine.step()
        passes = [len(request.trace) - before[request] for request in running if not request.finished]
        behind.append(max(passes, default=0) - min(passes, default=0))
    assert max(behind) <= 1, "some wait while others are served again and again"
    assert not all(request.finished for request in running), "the prompt was not read while answers were written"
    run(engine)
    while any(not request.finished for request in running):
        engine.step()
    for request in (*running, late):
        check(request)
    assert pool.num_free == pool.num_blocks


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
