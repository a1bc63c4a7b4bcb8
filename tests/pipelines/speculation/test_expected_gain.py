"""What a model is expected to bring: what all the ways in which it can go bring and take, each by its probability."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.speculation.acceptance import Features
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.drafters.base import Proposal
from outrider.pipelines.speculation.expected_acceptance import Expected
from outrider.pipelines.speculation.expected_gain import FOUND, ExpectedGain

from .planning import BASES, cost_of, draft_of

SHARES = st.floats(0.01, 1)


@given(BASES, st.lists(SHARES, min_size=1, max_size=10), SHARES, st.floats(0, 0.3), st.integers(1, 9), st.data())
def test_a_draft_is_read_as_far_as_that_is_worth_most(base, estimates, expected, rate, rows, data):
    cost, draft = cost_of(base, draft_ms=data.draw(SHARES)), draft_of()
    cost.drafts["draft_model"].row_ms = data.draw(SHARES)
    for estimate in estimates:
        draft.take(Proposal(7, "suffix", Features("suffix")), draft.probability * estimate)
    n, probabilities = len(estimates), [1.0, *draft.probabilities]
    length = data.draw(st.integers(0, n))
    own, num_behind, reads_ahead = cost.of_draft("draft_model"), data.draw(st.integers(1, 9)), data.draw(st.booleans())
    own.begin_ms, depth = data.draw(SHARES), data.draw(st.none() | st.integers(1, n))
    gain = ExpectedGain(cost, own, rate, Expected(expected, 0.5), reads_ahead=reads_ahead, depth=depth)

    def price(num_rows: int) -> float:
        """Of so many rows of the draft, in tokens."""
        return rate * sum(cost.row_ms(rows + i, 1 + i, draft.context) for i in range(num_rows))

    def brings(num_scored: int, num_taken: int) -> float:
        """What a draft brings that is read so far: where the first wrong token is read it is mended, and ends it."""
        total = 0.0
        for right in range(n + 1):
            probability = probabilities[right] - (probabilities[right + 1] if right < n else 0.0)
            if right < num_scored:
                total += probability * (right + expected - price(right + 1))
            else:
                total += probability * (min(right, num_taken) - price(num_taken))
        return total

    def of_scoring(num_scored: int) -> float:
        found = max(brings(num_scored, num_taken) for num_taken in (num_scored, n))
        fed_ms = own.beginning_ms() + own.pass_ms(1)
        if reads_ahead:
            fed_ms += own.feeding_ms(num_behind - 1 + num_scored)
        else:
            fed_ms += own.feeding_ms(num_behind - 1) + num_scored * own.pass_ms(1)
        return FOUND * found + (1 - FOUND) * brings(0, length) - rate * fed_ms

    found, num_scored = gain.of_scoring(draft, length, rows, num_behind, 1)
    assert found == pytest.approx(max(of_scoring(i) for i in range(1, 1 + (depth or n))), abs=1e-7)
    assert found == pytest.approx(of_scoring(num_scored), abs=1e-7)


@given(BASES, SHARES, SHARES, st.floats(0.01, 0.3), st.integers(1, 9), st.booleans(), st.integers(0, 3))
def test_generating_brings_what_the_best_length_does(base, first, following, rate, rows, goes_on, length):
    """The first token of a draft is as likely as first ones are, those after it as following ones."""
    cost, draft = cost_of(base, draft_ms=0.5), draft_of()
    for _ in range(length):
        draft.take(Proposal(7, "suffix", Features("suffix")), draft.probability * 0.9)
    gain = ExpectedGain(cost, cost.of_draft("draft_model"), rate, Expected(first, following))

    def of_length(number: int) -> float:
        total, reached = 0.0, draft.probability
        for i in range(number):
            reached *= following if goes_on or i else first
            total += reached - rate * (0.5 + cost.row_ms(rows + i, 1 + length + i, draft.context))
        return total

    best = max(of_length(number) for number in range(draft.limit - length + 1))
    assert gain.of_generating(draft, length, rows, 2.0, 1, goes_on=goes_on) == pytest.approx(best - rate * 2.0)


@pytest.mark.parametrize(("reads_ahead", "fed_ms"), [(True, 1.5 + 7 * 0.1), (False, 1.5 + 4 * 0.1 + 3 * 2.0)])
def test_to_catch_up_a_draft_model_takes_a_row_for_each_token_of_a_draft_and_a_head_a_pass(reads_ahead, fed_ms):
    """Of the text both read all in one pass."""
    own = DraftCost(2.0, 0.1, begin_ms=1.5)
    gain = ExpectedGain(cost_of([10] * 6), own, rate=0.1, expected=Expected(0.8, 0.8), reads_ahead=reads_ahead)
    assert gain.feeding_ms(num_behind=5, length=3) == pytest.approx(fed_ms)
