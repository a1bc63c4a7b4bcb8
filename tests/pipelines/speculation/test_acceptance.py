"""Probabilities: as often right as they say, for whatever kind of features, and at every depth of a draft."""

from __future__ import annotations

import math
import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.speculation.acceptance import GREEDY, AcceptanceModel, Conditions, Features
from outrider.pipelines.speculation.drafters.base import Proposal


def odds_to_probability(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


def outcomes(rng: random.Random, weights: tuple[float, ...], number: int):
    """Features, whether it was right, and how likely that was."""
    for _ in range(number):
        features = tuple(rng.gauss(0, 1) for _ in weights[1:])
        probability = odds_to_probability(weights[0] + sum(w * x for w, x in zip(weights[1:], features, strict=True)))
        yield Features("kind", features), rng.random() < probability, probability


def test_a_kind_begins_with_its_prior_and_an_unknown_one_with_even_odds():
    acceptance = AcceptanceModel({"known": (0.5, -2.0)})
    assert acceptance.probability(Features("known", (0.25,))) == pytest.approx(0.5)
    assert acceptance.probability(Features("known", (-1.0,))) == pytest.approx(odds_to_probability(2.5))
    assert acceptance.probability(Features("unknown", (3.0, 4.0))) == 0.5


@pytest.mark.parametrize("priors", [None, {"kind": (0.5, 1.0, -0.5, 0.0)}, {"kind": (3.0, 0.0, 0.0, 0.0)}], ids=str)
def test_probabilities_come_close_to_the_truth(priors):
    """From no prior, a good one and a bad one."""
    rng, acceptance, weights = random.Random(1), AcceptanceModel(priors), (0.3, 1.2, -0.6, 0.0)
    for features, right, _ in outcomes(rng, weights, 3000):
        acceptance.observe(features, right)
    errors = [abs(acceptance.probability(features) - truth) for features, _, truth in outcomes(rng, weights, 500)]
    assert sum(errors) / len(errors) < 0.04


@pytest.mark.parametrize("warmer_first", [True, False])
def test_less_is_expected_of_texts_at_high_temperatures_before_anything_is_known(warmer_first):
    """However many cooler ones were seen before; as much as ever of models, which draw their tokens."""
    acceptance = AcceptanceModel({"copy": (2.0,), "draft_model": (2.0,)}, texts={"copy"})
    temperatures = (0.6, 1.0, 2.0, 4.0)
    odds = {}
    for temperature in temperatures if warmer_first else temperatures[::-1]:
        conditions = Conditions.of(GenerationConfig(do_sample=True, temperature=temperature))
        odds[temperature] = [acceptance.log_odds(Features(kind), conditions) for kind in ("copy", "draft_model")]
    assert [of_copy for of_copy, _ in odds.values()] == pytest.approx(
        [2.0 + {2.0: -0.9, 4.0: -4.0}.get(temperature, 0.0) for temperature in odds]
    )
    assert [of_model for _, of_model in odds.values()] == pytest.approx([2.0] * len(odds))


def test_conditions_begin_with_what_the_nearest_cooler_ones_learnt_and_change_nothing_for_others():
    def at(temperature: float) -> Conditions:
        return Conditions.of(GenerationConfig(do_sample=True, temperature=temperature))

    acceptance, kind = AcceptanceModel({"kind": (1.0,)}), Features("kind")
    for _ in range(100):
        acceptance.observe(kind, True, at(1.0))
        acceptance.observe(kind, False, at(8.0))
    warm, hot = acceptance.probability(kind, at(1.0)), acceptance.probability(kind, at(8.0))
    assert hot < 0.1 < 0.9 < warm
    assert acceptance.probability(kind, at(2.0)) == warm
    assert acceptance.probability(kind, at(0.9)) == warm, "as it is nearly the same temperature"
    assert acceptance.probability(kind, at(0.5)) == pytest.approx(odds_to_probability(1.0))
    assert acceptance.probability(kind) == pytest.approx(odds_to_probability(1.0))
    assert Conditions.of(GenerationConfig()) == GREEDY
    assert Conditions.of(GenerationConfig(do_sample=True, temperature=0.0)) == GREEDY
    other = GenerationConfig(mode="draft", acceptance="typical", do_sample=True)
    assert acceptance.probability(kind, Conditions.of(other)) == pytest.approx(odds_to_probability(1.0))


def test_the_likeliest_is_told_with_its_probability_under_the_conditions():
    acceptance, hot = AcceptanceModel(), Conditions("exact", 2)
    first, second = (Proposal(token, "text", Features(kind)) for token, kind in ((5, "first"), (7, "second")))
    for _ in range(20):
        acceptance.observe(first.features, True)
        acceptance.observe(second.features, True, hot)
        acceptance.observe(first.features, False, hot)
    assert acceptance.likeliest([first, second]) == (first, acceptance.probability(first.features))
    assert acceptance.likeliest([first, second], hot) == (second, acceptance.probability(second.features, hot))
    assert acceptance.likeliest([first, first._replace(token=9)])[0].token == 5, "the first of equal ones"


def test_a_few_outcomes_already_tell():
    acceptance = AcceptanceModel()
    for _ in range(8):
        acceptance.observe(Features("hopeless"), False)
        acceptance.observe(Features("sure"), True)
    assert acceptance.probability(Features("hopeless")) < 0.25
    assert acceptance.probability(Features("sure")) > 0.75


def test_probabilities_follow_a_change_of_text():
    rng, acceptance = random.Random(2), AcceptanceModel()
    for _ in range(5000):
        acceptance.observe(Features("kind"), rng.random() < 0.95)
    assert acceptance.probability(Features("kind")) == pytest.approx(0.95, abs=0.04)
    for _ in range(1000):
        acceptance.observe(Features("kind"), rng.random() < 0.3)
    assert acceptance.probability(Features("kind")) == pytest.approx(0.3, abs=0.08)


def test_what_is_learnt_of_one_kind_changes_no_other():
    acceptance = AcceptanceModel({"other": (0.4, 1.0)})
    before = acceptance.probability(Features("other", (1.0,)))
    for _ in range(50):
        acceptance.observe(Features("kind", (1.0,)), False)
    assert acceptance.probability(Features("other", (1.0,))) == before


def test_drafts_are_judged_rightly_at_every_depth_from_outcomes_up_to_the_first_rejection():
    """A draft model that is too sure of itself: its 0.95 is 0.85."""
    rng, acceptance = random.Random(3), AcceptanceModel({"draft_model": (0.0, 1.0, 0.0)})
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for number in range(4000):
        survival, alive = 1.0, True
        for depth in range(12):
            stated = rng.uniform(0.5, 0.99)
            features = Features("draft_model", (math.log(stated / (1 - stated)), math.log2(1 + depth) / 4))
            truth = odds_to_probability(0.6 * math.log(stated / (1 - stated)) - 0.2)
            survival *= acceptance.probability(features)
            kept = rng.random() < truth
            if alive:
                acceptance.observe(features, kept)
            alive = alive and kept
            if number > 500:
                sums[depth][0] += survival
                sums[depth][1] += alive
                sums[depth][2] += 1
    for depth, (estimated, actual, number) in sums.items():
        assert estimated / number == pytest.approx(actual / number, abs=0.03), depth


@given(
    st.lists(st.tuples(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2).map(tuple), st.booleans()), max_size=30)
)
def test_a_probability_lies_between_0_and_1_whatever_was_seen(seen):
    acceptance = AcceptanceModel({"kind": (1.0, 2.0, 3.0)})
    for values, kept in seen:
        acceptance.observe(Features("kind", values), kept)
        for features in (Features("kind", values), Features("kind", (0.0, 0.0))):
            assert 0 < acceptance.probability(features) < 1
