"""The loop when something ends early or breaks: the others go on, every block comes back, the next is served."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.errors import BrokenLogits
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.suffix import Suffix

from ..fakes import BLOCK_SIZE, FakeModel, Row, Rule, acceptance, fake_engine, new_request, run
from ..serving import COST, RULE, SAMPLED, check, drafters, plain, requests
from ..speculation.broken_drafters import SABOTAGE, BrokenDrafter, right, unsteady


@settings(max_examples=80)
@given(requests(), st.randoms(use_true_random=False))
def test_a_cancelled_request_leaves_the_others_and_its_blocks_as_they_were(made, rng):
    some_drafters, draft_pool = drafters()
    engine, pool = fake_engine(FakeModel(RULE), some_drafters)
    for request in made:
        engine.add(request)
    cancelled = [request for request in made if rng.random() < 0.5]
    for request in cancelled:
        for _ in range(rng.randrange(5)):
            engine.step()
        engine.cancel(request)
    while any(not request.finished for request in made):
        engine.step()
    for request in made:
        if request.finish_reason == "cancelled":
            assert request in cancelled
            assert request.new_tokens == plain(request).token_ids[: request.num_new]
        else:
            check(request)
    assert (pool.num_free, draft_pool.num_free) == (pool.num_blocks, draft_pool.num_blocks)


@pytest.mark.parametrize("sabotage", SABOTAGE)
def test_a_sabotaged_drafter_changes_nothing(sabotage):
    engine, pool = fake_engine(FakeModel(RULE), {"draft": BrokenDrafter(SABOTAGE[sabotage])})
    made = [
        new_request([seed, 2, 3, 2, 3], 20, mode="draft", num_assistant_tokens=seed + 1, rng_seed=seed, **SAMPLED)
        for seed in range(8)
    ]
    run(engine, *made)
    for request in made:
        check(request)
    assert pool.num_free == pool.num_blocks


def test_a_drafter_that_failed_is_left_out_of_that_answer_only(caplog):
    drafter = BrokenDrafter(SABOTAGE["raises"])
    engine, _ = fake_engine(FakeModel(RULE), {"draft": drafter})
    run(engine, new_request([1], 8, mode="draft"), new_request([2], 8, mode="draft"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "test failed" in caplog.text


def test_a_failed_pass_fails_its_requests_frees_their_blocks_and_the_next_is_served():
    model = FakeModel(RULE)
    some_drafters, draft_pool = drafters()
    engine, pool = fake_engine(model, some_drafters)
    failing = [new_request([1, 2, 3, 4, 5, n], 12, mode=mode) for n, mode in enumerate(("off", "lookup", "draft"))]
    for request in failing:
        engine.add(request)
    engine.step()

    def fail(windows):
        raise RuntimeError("the device is gone")

    model.before_pass = fail
    engine.step()
    model.before_pass = lambda windows: None
    assert [str(request.error) for request in failing] == ["the device is gone"] * 3
    assert (pool.num_free, draft_pool.num_free) == (pool.num_blocks, draft_pool.num_blocks)
    again = [new_request([1, 2, 3, 4, 5, n], 12, mode="draft") for n in range(3)]
    run(engine, *again)
    for request in again:
        check(request)


def test_a_request_that_fails_alone_leaves_the_others():
    class Unlucky(type(new_request([1]))):
        def extend(self, tokens, sources, rows):
            raise ValueError("no luck")

    engine, pool = fake_engine(FakeModel(RULE))
    unlucky, other = Unlucky([1, 2], new_request([1]).config, 8), new_request([1, 2], 8)
    engine.add(unlucky)
    run(engine, other)
    assert str(unlucky.error) == "no luck"
    check(other)
    assert pool.num_free == pool.num_blocks


def with_number(number: float, place: slice, where: Callable[[Sequence[int]], bool], rule: Rule = RULE) -> Rule:
    """A rule with that number among its logits after some beginnings."""

    def broken(prefix: Sequence[int]) -> Row:
        logits = rule(prefix).copy()
        if where(prefix):
            logits[place] = number
        return logits

    return broken


@pytest.mark.parametrize("mode", ["off", "draft"])
def test_logits_behind_the_end_of_an_answer_matter_to_nobody(mode):
    free = new_request([1, 2, 3], 12, mode="off")
    run(fake_engine(FakeModel(RULE))[0], free)
    end = next(i for i, token in enumerate(free.new_tokens) if i > 2 and token not in free.new_tokens[:i])
    broken = with_number(math.nan, slice(None), lambda prefix: len(prefix) > 3 + end)
    request = new_request([1, 2, 3], 12, mode=mode, stop_token_ids={free.new_tokens[end]}, num_assistant_tokens=8)
    run(fake_engine(FakeModel(broken), {"draft": right(RULE)})[0], request)
    assert (request.new_tokens, request.finish_reason) == (free.new_tokens[: end + 1], "stop")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "options",
    [
        {}, {"logprobs": 2}, {"repetition_penalty": 1.3}, {"logit_bias": {3: 1.0}}, {"do_sample": True},
        {"do_sample": True, "logprobs": 2}, {"do_sample": True, "top_k": 3}, {"do_sample": True, "top_p": 0.9},
        {"do_sample": True, "min_p": 0.1}, {**SAMPLED, "logprobs": 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    ("number", "place", "message"),
    [
        (math.nan, slice(5, 6), "logits contain nan"),
        (math.nan, slice(None), "logits contain nan"),
        (math.inf, slice(5, 6), "logits contain inf"),
        (-math.inf, slice(None), "No token can follow"),
    ],
    ids=str,
)
def test_logits_that_are_no_numbers_are_one_error_of_that_request(options, number, place, message):
    """Also where some rows of a draft were sound."""
    broken = with_number(number, place, lambda prefix: prefix[0] == 7 and len(prefix) > 4)
    engine, pool = fake_engine(FakeModel(broken), {"draft": right(RULE)})
    made = [new_request([n, 2], 12, mode="draft", **options) for n in (6, 7, 8)]
    for request in made:
        engine.add(request)
    while not all(request.finished for request in made):
        engine.step()
    before, failed, behind = made
    for request in (before, behind):
        check(request)
    with pytest.raises(BrokenLogits, match=message):
        raise failed.error
    assert pool.num_free == pool.num_blocks


@pytest.mark.parametrize("mode", ["draft", "chained", "auto"])
@pytest.mark.parametrize("num_assistant_tokens", [None, 3])
@pytest.mark.parametrize("sampled", [{}, SAMPLED], ids=str)
def test_a_draft_model_whose_logits_are_no_numbers_is_a_drafter_that_failed(
    mode, num_assistant_tokens, sampled, caplog
):
    rule = with_number(math.nan, slice(5, 6), lambda prefix: len(prefix) > 5)
    pool = BlockPool(64, BLOCK_SIZE)
    made = {"suffix": Suffix(acceptance()), "draft": DraftModel(FakeModel(rule), pool, 1000)}
    engine, _ = fake_engine(FakeModel(RULE), made, cost=replace(COST))
    request = new_request([1, 2, 3], 30, mode=mode, **{"num_assistant_tokens": num_assistant_tokens, **sampled})
    run(engine, request)
    check(request)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "draft_model failed" in caplog.text
    assert pool.num_free == pool.num_blocks


def test_a_waiting_request_can_be_cancelled():
    engine, pool = fake_engine(FakeModel(RULE, num_blocks=4))
    running, waiting, last = (new_request([n] * 9, 7) for n in range(3))
    for request in (running, waiting, last):
        engine.add(request)
    engine.step()
    engine.cancel(waiting)
    while not last.finished:
        engine.step()
    assert (waiting.finish_reason, waiting.new_tokens) == ("cancelled", [])
    check(running)
    check(last)
    assert pool.num_free == 4


def test_cancelling_in_the_middle_of_a_pass_is_safe():
    """A dropped stream is cancelled by the thread that collects it, even during a pass of that thread."""
    model = FakeModel(RULE)
    engine, pool = fake_engine(model)
    request, other = new_request(range(11), 20), new_request(range(5), 20)
    engine.add(request)
    engine.add(other)
    engine.step()
    model.before_pass = lambda windows: engine.cancel(request)
    while not other.finished:
        engine.step()
    assert (request.finish_reason, request.num_new, request.error) == ("cancelled", 1, None)
    check(other)
    assert pool.num_free == pool.num_blocks


@pytest.mark.parametrize("moment", ["open", "_take", "_give_back", "publish"])
@pytest.mark.parametrize("is_running", [False, True])
def test_a_stream_that_is_collected_anywhere_in_a_step_leaks_nothing(monkeypatch, moment, is_running):
    """The collector may run at any call, and a stream that it drops is cancelled by this very thread."""
    some_drafters, draft_pool = drafters()
    engine, pool = fake_engine(FakeModel(RULE, num_blocks=8), some_drafters)
    dropped = new_request(range(6), 24, mode="draft")
    others = [new_request([n] * 9, 12, mode="draft") for n in range(3)]
    engine.add(dropped)
    if is_running:
        engine.step()
    for other in others:
        engine.add(other)
    for some_pool in (pool, draft_pool):
        real = getattr(some_pool, moment)

        def collecting(*arguments, real=real):
            engine.cancel(dropped)
            result = real(*arguments)
            engine.cancel(dropped)
            return result

        monkeypatch.setattr(some_pool, moment, collecting)
    while any(not other.finished for other in others):
        engine.step()
    assert dropped.finish_reason == "cancelled"
    for other in others:
        check(other)
    assert (pool.num_free, draft_pool.num_free) == (pool.num_blocks, draft_pool.num_blocks)


def test_who_borrows_from_two_pools_holds_neither_until_both_have_room():
    """A request that had to give way keeps its draft's blocks until it has room again to go on."""
    some_drafters, draft_pool = drafters(num_blocks=8)
    engine, pool = fake_engine(FakeModel(RULE, num_blocks=8), some_drafters)
    made = [new_request(range(n, n + 8), 22, mode="draft") for n in range(2)]
    for request in made:
        engine.add(request)
    while not engine.load.waiting or draft_pool.num_free == draft_pool.num_blocks:
        assert any(not request.finished for request in made), "nobody had to give way"
        engine.step()
    with engine.borrowed(4 * 8, pool, draft_pool) as blocks:
        assert [len(each) for each in blocks] == [8, 8]
    for request in made:
        check(request)
    assert (pool.num_free, draft_pool.num_free) == (8, 8)


@pytest.mark.parametrize("num_begun", [1, 2])
def test_who_waits_to_borrow_is_not_kept_waiting_by_those_who_come_meanwhile(num_begun):
    """Of two requests one has to give way, but keeps its draft's blocks: it is let in again to come to its end."""
    some_drafters, draft_pool = drafters(num_blocks=8)
    model = FakeModel(RULE, num_blocks=8)
    engine, pool = fake_engine(model, some_drafters)
    begun = [new_request(range(n, n + 8), 22, mode="draft") for n in range(num_begun)]
    for request in begun:
        engine.add(request)
    engine.step()
    while num_begun == 2 and (not engine.load.waiting or draft_pool.num_free == draft_pool.num_blocks):
        engine.step()
    late = []

    def another_comes(windows):
        if len(late) == 200:
            pytest.fail("those who come later are served, and a borrower waits for ever")
        late.append(new_request([len(late) % 9, 1, 2], 6))
        engine.add(late[-1])

    model.before_pass = another_comes
    with engine.borrowed(4 * 8, pool, draft_pool):
        for request in begun:
            check(request)
        assert late
        assert not any(request.num_new for request in late)
    model.before_pass = lambda windows: None
    run(engine, *(new_request([7], 2) for _ in range(2)))
    while not all(request.finished for request in late):
        engine.step()
    for request in late:
        check(request)
    assert pool.num_free == pool.num_blocks


def test_a_failed_step_of_whoever_waits_to_borrow_leaves_the_door_open(monkeypatch):
    engine, pool = fake_engine(FakeModel(RULE, num_blocks=8))
    request = new_request(range(8), 22)
    engine.add(request)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError), engine.borrowed(4 * 8, pool):
            pass
    late = new_request([5], 3)
    run(engine, late)
    check(late)


def test_drafters_are_told_of_every_end():
    drafter = unsteady(RULE)
    engine, _ = fake_engine(FakeModel(RULE), {"draft": drafter})
    done, dropped = new_request([1], 5, mode="draft"), new_request([2], 5, mode="draft")
    run(engine, done)
    engine.add(dropped)
    engine.step()
    engine.cancel(dropped)
    assert drafter.released == [done, dropped]


def test_a_draft_model_without_room_drafts_again_once_another_request_has_ended():
    """Which takes no more passes than it was without room."""
    pool = BlockPool(6, BLOCK_SIZE)
    drafter = DraftModel(FakeModel(RULE, 6), pool, 1000)
    engine, target_pool = fake_engine(FakeModel(RULE), {"draft": drafter}, replace(COST))
    long, other = (new_request([n] * 9, 60, mode="draft", num_assistant_tokens=None) for n in (1, 2))
    engine.add(other)
    while pool.num_free > 2:
        engine.step()
    engine.add(long)
    while not long.num_new:
        engine.step()
    for _ in range(3):
        engine.step()
    assert not any(record.drafted for record in long.trace), "there was room"
    num_without = len(long.trace)
    engine.cancel(other)
    for _ in range(2 * num_without + 2):
        engine.step()
    assert any(record.drafted for record in long.trace)
    engine.cancel(long)
    assert (target_pool.num_free, pool.num_free) == (target_pool.num_blocks, pool.num_blocks)
