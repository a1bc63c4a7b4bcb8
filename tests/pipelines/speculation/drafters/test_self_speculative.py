"""A target that drafts by itself writes the same tokens, and leaves nothing of its drafts behind."""

from __future__ import annotations

import pytest

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.request import Request
from outrider.pipelines.model.split_model import SplitModel
from outrider.pipelines.model.target import Window
from outrider.pipelines.speculation.drafters.self_speculative import SKIPPING, SelfSpeculative
from outrider.pipelines.speculation.planner import Planner

from ...fakes import BLOCK_SIZE, FakeModel, FakeSplit, fake_engine, new_request, random_rule, run
from ...real import Models, same
from ...requests import Asked, Asking

SAMPLED = {"do_sample": True, "temperature": 0.8, "rng_seed": 11}
FIXED = {"num_assistant_tokens": 4}

by_itself = pytest.mark.parametrize("models", ["skip", "exit"], indirect=True)


@by_itself
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, SAMPLED], ids=str)
def test_a_long_prompt_that_others_share_is_answered_the_same(models: Models, options):
    prompt = Asking(models.tokenizer, 2).prompt("code")
    prompt = (prompt * 50)[:450]
    asked = [Asked(prompt[:length], GenerationConfig(**options, **FIXED), 16) for length in (450, 448, 448, 447)]
    plain = [models.served().one(question) for question in asked]
    served, mode = models.served(), models.modes[1]
    same([served.one(question, mode) for question in asked[:2]], plain[:2], asked[:2], "one after the other")
    same(served.all(asked, [mode] * len(asked)), plain, asked, "together")
    served.assert_nothing_leaked()


def ready(num_tokens: int, num_blocks: int = 8) -> tuple[SelfSpeculative, FakeSplit, BlockPool, Request]:
    model, pool = FakeSplit(random_rule(), random_rule(1), num_blocks), BlockPool(num_blocks, BLOCK_SIZE)
    request = new_request(range(1, 1 + num_tokens))
    request.table, request.num_cached = pool.open(request.tokens, num_tokens)
    model.forward([Window(request.tokens, 0, request.table.blocks)])
    return SelfSpeculative(SKIPPING, model, pool), model, pool, request


def test_only_new_rows_are_run_and_the_last_again_where_its_logits_are_wanted():
    drafter, model, _, request = ready(3)
    assert drafter.num_behind(request) == 1
    drafter.generate([(request, [])])
    assert drafter.num_behind(request, [7]) == 1
    drafter.generate([(request, [7])])
    drafter.generate([(request, [7])])
    drafter.generate([(request, [7, 8, 9])])
    assert drafter.num_behind(request, [7, 8, 9, 1, 2]) == 2
    drafter.score([(request, [7, 8])])
    fed = [[(window.start, list(window.tokens), window.num_rows) for window in windows] for windows in model.drafted]
    assert fed == [[(2, [3], 1)], [(3, [7], 1)], [(3, [7], 1)], [(4, [8, 9], 1)], [(2, [3, 7, 8], 3)]]
    drafter.release(request)
    assert drafter.num_behind(request, [7]) == 2


def test_a_draft_that_is_longer_than_a_pass_takes_several():
    drafter, model, _, request = ready(3)
    model.rows = type(model.rows)(1, 4)
    other = new_request([5])
    other.table = request.table
    (scores, _) = drafter.score([(request, [1, 2, 3, 4, 5]), (other, [6])])
    assert [sum(len(window.tokens) for window in windows) for windows in model.drafted] == [4, 4]
    assert scores is not None
    assert len(scores) == 6


def test_nothing_is_drafted_where_no_block_is_free_or_others_read_the_block():
    drafter, model, pool, request = ready(2 * BLOCK_SIZE, num_blocks=3)
    ahead = [1] * BLOCK_SIZE
    assert drafter.generate([(request, ahead)])[0] is not None
    assert drafter.generate([(request, [*ahead, 1])]) == [None]
    assert pool.num_free == 0
    pool.publish(request.table, request.tokens, 2 * BLOCK_SIZE)
    model.drafted.clear()
    assert drafter.generate([(request, [])]) == [None]
    assert model.drafted == []


@by_itself
@pytest.mark.slow
def test_the_first_part_runs_once_for_every_accepted_token(models: Models):
    """However often drafts are wrong: the target runs its first part only for the rows that no draft has run."""
    assert isinstance(models.target, SplitModel)
    before = models.target.num_taken_over
    asked = Asked(Asking(models.tokenizer, 5).prompt("code"), GenerationConfig(**FIXED), 24)
    request = models.served().one(asked, models.modes[1])
    drafted = sum(len(record.drafted) for record in request.trace)
    assert models.target.num_taken_over - before == drafted > 0


def test_what_a_pass_costs_is_not_learnt_where_a_draft_has_computed_a_part_of_it(monkeypatch):
    """It takes less time than other passes with as many rows."""
    model, learnt = FakeModel(random_rule(1)), []
    monkeypatch.setattr(Planner, "observe", lambda planner, drafts, kept, target_ms, beside: learnt.append(target_ms))
    engine, _ = fake_engine(model)

    def take_over(windows) -> None:
        model.num_taken_over += model.num_passes in (3, 4)

    model.before_pass = take_over
    run(engine, new_request([1, 2, 3], 8))
    taken = [target_ms is None for target_ms in learnt]
    assert taken[1:] == [False, True, True, False, False, False, False]
