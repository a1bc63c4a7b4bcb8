"""Who takes part in a pass: requests wait, give way, share beginnings and read in chunks, and nobody starves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.engine import scheduler as scheduler_module
from outrider.pipelines.model.target import Rows

from ..fakes import BLOCK_SIZE, FakeModel, fake_engine, new_request, run
from ..serving import COST, RULE, check, drafters, requests
from ..speculation.broken_drafters import right, wrong


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
        ([64], [[64], [1], [1]], [[64], [1], [1]]),
        ([150], [[128], [22], [1], [1]], [[150], [1], [1]]),
        ([60, 40], [[60, 4], [1, 32], [1, 4], [1], [1]], [[60, 40], [1, 1], [1, 1]]),
        (
            [60, 20, 20],
            [[60, 4], [1, 16, 16], [1, 1, 4], [1, 1], [1]],
            [[60, 20, 20], [1, 1, 1], [1, 1, 1]],
        ),
        ([600], [[512], [64], [24], [1], [1]], [[512], [88], [1], [1]]),
    ],
)
def test_prompts_are_read_in_whole_tiles_where_a_part_of_one_costs_as_much(prompt_lengths, in_tiles, otherwise):
    """What is left of them is read together with the first answers, 32 tokens a pass."""
    for is_tiled, passes in ((True, in_tiles), (False, otherwise)):
        model = FakeModel(RULE, num_blocks=256)
        engine, _ = fake_engine(model, cost=replace(COST, is_tiled=is_tiled, change_ms=0.0))
        seen: list[list[int]] = []
        model.before_pass = lambda windows, seen=seen: seen.append([len(window.tokens) for window in windows])
        run(engine, *(new_request([n] * length, 3, mode="off") for n, length in enumerate(prompt_lengths)))
        assert seen == passes, "each answer has three tokens, of which reading gives the first"


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


@pytest.mark.slow
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


def test_blocks_that_a_rejected_draft_took_are_there_for_others():
    """While the other answer is written, each needs four blocks of eight at most, and a draft takes three more."""
    model = FakeModel(RULE, num_blocks=8)
    engine, _ = fake_engine(model, {"draft": wrong(RULE)})
    drafted = new_request([1], 8 * BLOCK_SIZE - 1, num_assistant_tokens=3 * BLOCK_SIZE - 1, mode="draft")
    engine.add(drafted)
    while len(drafted.tokens) <= BLOCK_SIZE:
        engine.step()
    other = new_request([2] * 2 * BLOCK_SIZE, 2 * BLOCK_SIZE, mode="off")
    engine.add(other)
    num_before = model.num_passes
    while not other.finished:
        engine.step()
    assert model.num_passes == num_before + other.num_new
    check(other)


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


def test_a_prompt_gets_more_rows_a_pass_beside_drafts_and_as_many_as_ever_beside_plain_decoding(monkeypatch):
    monkeypatch.setattr(scheduler_module, "PREFILL_ROWS_BESIDE_DECODING", 8)
    for mode in ("off", "draft"):
        model = FakeModel(RULE, num_blocks=128)
        engine, _ = fake_engine(model, {"draft": right(RULE)}, cost=replace(COST))
        running, late = new_request([1, 2, 3], 200, mode=mode, num_assistant_tokens=None), new_request([7] * 150, 5)
        engine.add(running)
        while running.num_new < 20:
            engine.step()
        engine.add(late)
        chunks = []
        model.before_pass = lambda windows, chunks=chunks: chunks.append(len(windows[-1].tokens))
        while not late.new_tokens:
            engine.step()
        if mode == "off":
            assert chunks == [*18 * [8], 6]
        else:
            assert max(chunks) > 8
            assert len(chunks) < 19
        while not (running.finished and late.finished):
            engine.step()
        for request in (running, late):
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
