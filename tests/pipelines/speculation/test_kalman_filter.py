"""The filter's mean is what conditioning a Gaussian on all that was seen gives, stalls and old times set aside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.pipelines.speculation import kalman_filter
from outrider.pipelines.speculation.kalman_filter import NOISE, KalmanFilter


def some_prior(rng: np.random.Generator, size: int) -> np.ndarray:
    root = rng.normal(size=(size, size))
    return 0.1 * root @ root.T + 0.01 * np.eye(size)


@given(seed=st.integers(0, 10_000), size=st.integers(1, 6), count=st.integers(1, 12))
@settings(max_examples=60)
def test_it_is_the_conditional_of_a_gaussian(seed, size, count):
    rng = np.random.default_rng(seed)
    prior, shares = some_prior(rng, size), rng.uniform(0, 1, (count, size))
    truth = rng.multivariate_normal(np.zeros(size), prior)
    seen = shares @ truth + rng.normal(0, NOISE, count)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(kalman_filter, "CREDIBLE", 1e9)
        made = KalmanFilter(prior, forget=0.0)
        for row, time in zip(shares, seen, strict=True):
            made.update(row, float(time - row @ made.mean))
    gain = prior @ shares.T @ np.linalg.inv(shares @ prior @ shares.T + NOISE**2 * np.eye(count))
    assert made.mean == pytest.approx(gain @ seen, abs=1e-8)


def test_what_is_no_longer_seen_is_forgotten():
    made = KalmanFilter(np.diag([0.04, 0.04]))
    for _ in range(50):
        made.update(np.array([1.0, 0.0]), 0.5 - made.mean[0])
        made.update(np.array([0.0, 1.0]), 0.5 - made.mean[1])
    learnt = made.mean.copy()
    assert learnt == pytest.approx([0.5, 0.5], abs=0.05)
    for _ in range(5000):
        made.update(np.array([1.0, 0.0]), 0.5 - made.mean[0])
    assert made.mean[0] == pytest.approx(0.5, abs=0.05)
    assert abs(made.mean[1]) < 0.1 * learnt[1]


def test_a_stall_moves_it_no_further_than_two_deviations_would():
    moved = {}
    for error in (0.2, 100.0):
        made = KalmanFilter(np.array([[0.0004]]))
        made.update(np.array([1.0]), error)
        moved[error] = made.mean[0]
    assert moved[0.2] <= moved[100.0] < 1.1 * moved[0.2]


def test_a_second_time_beyond_belief_is_believed_sooner_where_doubt_is_wanted():
    moved = {}
    for doubt in (0.0, 0.2):
        made = KalmanFilter(np.array([[0.25]]), doubt=doubt)
        for _ in range(20):
            made.update(np.ones(1), 0.0)
        made.update(np.ones(1), 4.0)
        stalled = made.mean[0]
        made.update(np.ones(1), 4.0 - stalled)
        moved[doubt] = stalled, made.mean[0] - stalled
    assert moved[0.0][0] == moved[0.2][0] < 0.1, "a single one may be a stall"
    assert moved[0.2][1] > 3 * moved[0.0][1]


def test_what_rests_goes_back_to_where_it_began():
    made = KalmanFilter(np.array([[0.25]]), forget=0.01)
    for _ in range(50):
        made.update(np.ones(1), 2.0 - made.mean[0])
    learnt = made.mean[0]
    for _ in range(300):
        made.forget()
    assert made.mean[0] == pytest.approx(learnt * 0.99**300)
