"""Whether draws follow a distribution."""

from __future__ import annotations

from collections import Counter

from scipy import stats


def assert_follows(counts: Counter[int], odds: dict[int, float]) -> None:
    assert counts.keys() <= odds.keys(), "a token that the settings exclude"
    total = sum(counts.values())
    usual = [token for token in odds if odds[token] * total >= 5]
    observed, share = [counts[token] for token in usual], sum(odds[token] for token in usual)
    # The others may be too few for chi-square.
    assert stats.binomtest(sum(observed), total, min(1.0, share)).pvalue > 1e-4
    if len(usual) > 1:
        expected = [odds[token] / share * sum(observed) for token in usual]
        assert stats.chisquare(observed, expected).pvalue > 1e-4
