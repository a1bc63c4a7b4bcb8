"""What is said about peers follows from their answers."""

from __future__ import annotations

import pytest

from outrider.app.bench.task import Task

from .peers.base import Question, Reply, until_end
from .peers.results import BASE, OURS, best_right, lines

LOOKUP = ("OpenVINO GenAI", "prompt lookup")
DRAFT = ("OpenVINO GenAI", "draft model")
PLAIN = {"OpenVINO GenAI": "plain", "Outrider": "off"}


def question(**options: object) -> Question:
    return Question(Task("edit", ("x",), options), ((1, 2),), options, eos=0)


def reply(tokens: tuple[int, ...], seconds: float) -> Reply:
    return Reply((tokens,), 1.0, 1.0 + seconds)


def test_a_rate_begins_after_the_first_token_and_that_of_a_batch_has_all() -> None:
    assert reply((1, 2, 3, 4, 5), 2.0).tokens_per_s == pytest.approx(2)
    assert Reply(((1, 2, 3), (4,)), None, 2.0).tokens_per_s == pytest.approx(2)
    assert reply((1,), 2.0).tokens_per_s is None


def test_ratios_are_paired_and_the_best_right_mode_is_the_fastest_whose_text_is_its_own_plain() -> None:
    text = (1, 2, 3, 4, 5)
    answers = [
        (question(), {
            BASE: reply(text, 4.0 * slow), LOOKUP: reply(text, 2.0 * slow), DRAFT: reply((1, 2, 9, 4, 5), 1.0 * slow),
            OURS: reply(text, 0.5 * slow), ("Outrider", "off"): reply(text, 4.0 * slow),
        })
        for slow in (1, 3)
    ]  # fmt: skip
    found = {line.who: line for line in lines(answers, PLAIN)}
    assert found[LOOKUP].to_base.median == pytest.approx(2)
    assert found[LOOKUP].ours_to_it.median == found[LOOKUP].ours_to_it.high == pytest.approx(4)
    assert (found[DRAFT].right, found[DRAFT].compared, found[DRAFT].is_right) == (0, 2, False)
    assert found[LOOKUP].is_right
    assert best_right(list(found.values()), "edit", BASE[0]) == found[LOOKUP]


def test_sampled_text_is_not_compared_and_that_of_another_distribution_is_not_right() -> None:
    replies = {BASE: reply((1, 2), 3.0), LOOKUP: reply((3, 4), 2.0), DRAFT: reply((5, 6), 1.0)}
    found = lines([(question(do_sample=True), replies)], PLAIN, {DRAFT})
    assert [(line.compared, line.is_right) for line in found] == [(0, True), (0, True), (0, False)]
    best = best_right(found, "edit", BASE[0])
    assert best is not None
    assert best.who == LOOKUP
    greedy = lines([(question(), {BASE: reply((1, 2), 3.0), DRAFT: reply((1, 2), 1.0)})], PLAIN, {DRAFT})
    assert all(line.is_right for line in greedy)


def test_a_mode_that_did_not_answer_everything_is_left_out() -> None:
    answers = [
        (question(), {BASE: reply((1, 2), 1.0), LOOKUP: reply((1, 2), 1.0)}),
        (question(), {BASE: reply((1,), 1)}),
    ]
    assert [line.who for line in lines(answers, PLAIN)] == [BASE]


def test_an_answer_ends_with_its_end_token() -> None:
    assert until_end([4, 0, 5], 0) == (4, 0)
    assert until_end([4, 5], 0) == (4, 5)
