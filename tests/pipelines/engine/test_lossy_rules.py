"""Lossy acceptance: each rule keeps what its paper says, and never what the other options rule out."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.engine import Engine
from outrider.pipelines.engine.sampling import Distribution, choose_token, distribution, sample, sample_draft, uniform
from outrider.pipelines.engine.verify import (
    DELTA,
    EPSILON,
    ROLLBACK,
    choose_beside,
    is_typical,
    is_within_threshold,
    residual,
    survives_rejection,
)
from outrider.pipelines.speculation.acceptance import Conditions, Features
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.head import Head
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.self_speculative import SKIPPING, SelfSpeculative

from .. import reference
from ..chi_square import assert_follows
from ..fakes import (
    BLOCK_SIZE,
    VOCABULARY,
    FakeHead,
    FakeModel,
    FakeSplit,
    acceptance,
    fake_engine,
    mixed_rule,
    new_request,
    random_rule,
    remembered,
    run,
)
from ..serving import COST, RULE, SAMPLED, drafters, plain
from ..speculation.broken_drafters import right, wrong

LOSSY = ("typical", "threshold", "rejection")
PROMPT = [1, 2, 3]
SEEDS = st.integers(0, 2**32)


def row(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, VOCABULARY).astype(np.float32)


def odds_of(logits: np.ndarray, config: GenerationConfig) -> dict[int, float]:
    """The slow reference for `distribution`; that of greedy decoding is the model's own."""
    scores = reference.penalize(logits, PROMPT, [], config)
    return reference.probabilities(scores if config.greedy else reference.survivors(scores, config))


def lossy(rule: str, **options: object) -> GenerationConfig:
    return GenerationConfig(mode="draft", acceptance=rule, **options)


def choice(config: GenerationConfig, logits: np.ndarray, proposed: int, drawn_from: Distribution | None = None) -> int:
    return choose_beside(proposed, drawn_from, logits, PROMPT, len(PROMPT), config)


@given(SEEDS, st.floats(0.3, 2), st.integers(1, VOCABULARY), st.floats(0.3, 1), st.booleans())
def test_the_distribution_is_what_the_slow_reference_samples_from(seed, temperature, top_k, top_p, do_sample):
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": 1.3}
    config = lossy("typical", do_sample=do_sample, **options)
    found, expected = distribution(row(seed), PROMPT, len(PROMPT), config), odds_of(row(seed), config)
    for token in range(VOCABULARY):
        assert found.of_token(token) == pytest.approx(expected.get(token, 0.0), abs=1e-12)


@given(SEEDS, st.floats(0.01, 1), st.floats(0.01, 1))
def test_typical_keeps_what_is_above_both_bounds_of_the_paper(seed, epsilon, delta):
    config = lossy("typical", do_sample=True, top_k=8, typical_epsilon=epsilon, typical_delta=delta)
    odds = odds_of(row(seed), config)
    entropy = -math.fsum(p * math.log(p) for p in odds.values())
    own = choose_token(row(seed), PROMPT, len(PROMPT), config)
    for token in range(VOCABULARY):
        is_kept = odds.get(token, 0.0) > min(epsilon, delta * math.exp(-entropy))
        assert choice(config, row(seed), token) == (token if is_kept else own)


@given(SEEDS, st.floats(0, 6), st.booleans())
def test_threshold_keeps_what_the_target_is_not_too_far_from(seed, threshold, do_sample):
    config = lossy("threshold", do_sample=do_sample, top_k=8, rollback_threshold=threshold)
    odds = odds_of(row(seed), config)
    own = choose_token(row(seed), PROMPT, len(PROMPT), config)
    for token in range(VOCABULARY):
        is_kept = token in odds and -math.log(odds[token]) <= threshold
        assert choice(config, row(seed), token) == (token if is_kept else own)


def test_the_defaults_are_those_of_the_papers_authors():
    assert (EPSILON, DELTA, ROLLBACK) == (0.09, 0.3, 2.0)
    even = Distribution(np.arange(4), np.full(4, 0.25))  # the entropy is log 4, so the bound 0.3 / 4
    assert is_typical(even, 3)
    assert is_within_threshold(even, 3)
    assert not is_typical(even, 4)
    assert not is_within_threshold(even, 4)


@given(SEEDS, st.sampled_from(["typical", "rejection"]))
def test_in_greedy_decoding_typical_and_rejection_keep_the_likeliest_token_alone(seed, rule):
    for token in range(VOCABULARY):
        assert choice(lossy(rule), row(seed), token) == int(np.argmax(row(seed)))


@given(SEEDS)
def test_a_certain_proposal_under_rejection_is_judged_as_by_the_exact_rule(seed):
    config = lossy("rejection", do_sample=True, rng_seed=seed)
    for token in range(VOCABULARY):
        assert choice(config, row(seed), token) == choose_token(row(seed), PROMPT, len(PROMPT), config)


@given(SEEDS, SEEDS)
def test_what_is_corrected_follows_the_positive_part_of_the_difference(seed, other):
    config = lossy("rejection", do_sample=True, top_k=5)
    target, draft = odds_of(row(seed), config), odds_of(row(other), config)
    left = {token: max(0.0, p - draft.get(token, 0.0)) for token, p in target.items()}
    total = math.fsum(left.values())
    found = residual(*(distribution(row(each), PROMPT, len(PROMPT), config) for each in (seed, other)))
    if total > 1e-9:
        for token in range(VOCABULARY):
            assert found.of_token(token) == pytest.approx(left.get(token, 0.0) / total, abs=1e-6)


def test_a_draft_that_is_the_target_is_always_kept():
    config = lossy("rejection", do_sample=True)
    same = distribution(row(1), PROMPT, len(PROMPT), config)
    assert all(survives_rejection(same, same, token, 1 - 2.0**-53) for token in range(VOCABULARY))
    assert residual(same, same) is same


@pytest.mark.slow
def test_rejection_sampling_keeps_the_distribution_and_as_much_as_the_two_have_in_common():
    base = lossy("rejection", do_sample=True, top_k=8)
    sources = [distribution(row(seed), PROMPT, len(PROMPT), base) for seed in (5, 6)]
    drawn, num_kept, num = Counter[int](), 0, 8_000
    for seed in range(num):
        config = replace(base, rng_seed=seed)
        proposed = sample_draft(sources[1], config, 0, len(PROMPT), len(PROMPT))
        token = choice(config, row(5), proposed, sources[1])
        num_kept += token == proposed
        drawn[token] += 1
    assert_follows(drawn, odds_of(row(5), base))
    common = float(np.minimum(sources[0].of(np.arange(VOCABULARY)), sources[1].of(np.arange(VOCABULARY))).sum())
    assert_follows(Counter({0: num_kept, 1: num - num_kept}), {0: common, 1: 1 - common})


@pytest.mark.slow
def test_the_noise_of_target_draft_and_acceptance_is_independent():
    even = Distribution(np.arange(4), np.full(4, 0.25))
    together: Counter[int] = Counter()
    for seed in range(12_000):
        config = lossy("rejection", do_sample=True, rng_seed=seed)
        own, drafted = sample(even, config, 0, 9), sample_draft(even, config, 0, 9, 7)
        again = sample_draft(even, config, 0, 9, 8)
        together[64 * own + 16 * drafted + 4 * again + int(4 * uniform(config, 0, 9))] += 1
    assert_follows(together, dict.fromkeys(range(256), 1 / 256))


# Rows that cost much, so that whether a drafted token pays depends on how likely it is.
STEEP = CostModel((2, 8, 33), (10.0, 17.0, 60.0), (0.0, 0.0, 0.0), {"draft_model": DraftCost(0.3, 0.01)})


def engine_of(mode: str) -> Engine:
    """One that drafts in a mode; a head there knows half of the vocabulary."""
    own, other, pool = remembered(RULE), remembered(mixed_rule(RULE, random_rule(3), 0.4)), BlockPool(64, BLOCK_SIZE)
    target, of_target = FakeSplit(own, other), BlockPool(64, BLOCK_SIZE)
    drafter = {
        "draft": DraftModel(FakeModel(other), pool, 1000),
        "head": Head(FakeHead(target.texts, other, range(0, VOCABULARY, 2)), pool, VOCABULARY),
        "skip": SelfSpeculative(SKIPPING, target, of_target),
    }[mode]
    cost = replace(STEEP, drafts={drafter.name: STEEP.drafts["draft_model"]})
    engine, _ = fake_engine(target, {mode: drafter}, cost, of_target)
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("length", [None, 2], ids=["planned", "fixed"])
@pytest.mark.parametrize("mode", ["draft", "head", "skip"])
def test_answers_under_rejection_sampling_follow_the_targets_distribution(mode, length):
    engine = engine_of(mode)
    options = {"do_sample": True, "temperature": 1.5, "top_k": 4, "acceptance": "rejection"}
    config = GenerationConfig(mode=mode, **options)
    drawn = []
    for seed in range(1600):
        drawn.append(new_request(PROMPT, 4, mode=mode, num_assistant_tokens=length, rng_seed=seed, **options))
        run(engine, drawn[-1])
    prefix: list[int] = []
    for place in range(3):
        behind = [request for request in drawn if request.new_tokens[:place] == prefix]
        counts = Counter(request.new_tokens[place] for request in behind)
        scores = reference.penalize(RULE([*PROMPT, *prefix]), PROMPT, prefix, config)
        assert_follows(counts, reference.probabilities(reference.survivors(scores, config)))
        prefix.append(counts.most_common(1)[0][0])
    sources = Counter(source for request in drawn for source in request.sources[1:])
    assert sources.total() - sources["target"] > 500 < sources["target"], f"this proves little: {sources}"


class Noting(DraftModel):
    """Notes what it generates."""

    def generate(self, wanted):
        self.generated += (proposals := super().generate(wanted))
        return proposals


def test_whatever_the_draft_model_drew_is_verified():
    """Else those that were left out because of their tokens would be missing from the distribution."""
    dropped, num_drawn = {"rejection": 0, "exact": 0}, 0
    for rule in dropped:
        model = FakeModel(mixed_rule(RULE, random_rule(3), 0.4), 256)
        drafter = Noting(model, BlockPool(256, BLOCK_SIZE), 1000)
        engine, _ = fake_engine(FakeModel(RULE, 256), {"draft": drafter}, cost=replace(STEEP))
        for seed in range(100):
            request = new_request(
                PROMPT, 12, mode="draft", num_assistant_tokens=None, do_sample=True, rng_seed=seed, acceptance=rule
            )
            engine.add(request)
            while not request.finished:
                drafter.generated = []
                engine.step()
                dropped[rule] += len(drafter.generated) - len(request.trace[-1].drafted)
                if rule == "rejection":
                    num_drawn += len(drafter.generated)
                    assert all(proposal.drawn_from is not None for proposal in drafter.generated)
    assert dropped["rejection"] == 0 < dropped["exact"]
    assert num_drawn > 100


@pytest.mark.parametrize("rule", LOSSY)
@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_what_is_drafted_right_or_not_at_all_leaves_the_text_alone(rule, options):
    for drafter in ({"lookup": PromptLookup()}, {}):
        engine, _ = fake_engine(FakeModel(RULE), drafter)
        request = new_request([5, 6], 20, mode="draft", acceptance=rule, **options)
        run(engine, request)
        assert request.new_tokens == plain(request).token_ids
    if rule == "typical" or options:
        return
    engine, _ = fake_engine(FakeModel(RULE), {"draft": right(RULE)})
    request = new_request([5, 6], 20, mode="draft", acceptance=rule)
    run(engine, request)
    assert request.new_tokens == plain(request).token_ids


def test_threshold_changes_a_greedy_answer_and_says_so():
    engine, _ = fake_engine(FakeModel(RULE), {"draft": wrong(RULE)})
    request = new_request(PROMPT, 20, mode="draft", acceptance="threshold", rollback_threshold=50.0)
    run(engine, request)
    assert request.new_tokens != plain(request).token_ids
    statistics = request.statistics
    assert statistics.accepted > 0
    assert statistics.acceptance == "threshold"
    assert statistics.lossy


@pytest.mark.parametrize("rule", LOSSY)
def test_nothing_is_kept_that_penalties_truncation_and_stops_rule_out(rule):
    parameters = {"rollback_threshold": 1e9} if rule == "threshold" else {}
    if rule == "typical":
        parameters = {"typical_epsilon": 1e-9}
    for seed in range(12):
        some, _ = drafters(seed)
        engine, pool = fake_engine(FakeModel(RULE), some, cost=replace(COST))
        options = {"do_sample": True, "temperature": 1.5, "top_k": 3, "rng_seed": seed, "logit_bias": {4: -100}}
        request = new_request(
            PROMPT, 16, mode="auto", acceptance=rule, num_assistant_tokens=None if seed % 2 else 4,
            stop_token_ids={0, 7}, min_new_tokens=5, **options, **parameters,
        )  # fmt: skip
        run(engine, request)
        written = request.new_tokens
        for place, token in enumerate(written):
            scores = reference.penalize(RULE([*PROMPT, *written[:place]]), PROMPT, written[:place], request.config)
            assert token in reference.survivors(scores, request.config)
        stops = [place for place, token in enumerate(written) if token in (0, 7)]
        assert not stops or (stops == [len(written) - 1] and len(written) > 5)
        assert pool.num_free == pool.num_blocks


@pytest.mark.parametrize("rule", LOSSY)
def test_the_same_drafts_give_the_same_text_again(rule):
    texts = []
    for _ in range(2):
        some, _ = drafters(1)
        engine, _ = fake_engine(FakeModel(RULE), some)
        request = new_request(PROMPT, 24, mode="draft", acceptance=rule, do_sample=True, rng_seed=3)
        run(engine, request)
        texts.append(request.new_tokens)
    assert texts[0] == texts[1]


def test_what_a_lossy_rule_accepts_does_not_change_what_is_expected_of_exact_requests():
    learnt, features = acceptance(), Features("draft_model", (1.0, 0.5))
    before = learnt.probability(features)
    for _ in range(20):
        learnt.observe(features, True, Conditions("threshold"))
    assert learnt.probability(features) == before
    assert learnt.probability(features, Conditions("threshold")) > before
