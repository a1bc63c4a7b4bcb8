"""Whether answers are of one distribution is told from how they begin."""

from __future__ import annotations

import numpy as np
import pytest

from .sampled import p_value


def answers(rng: np.random.Generator, shares: list[float], count: int = 1000) -> list[tuple[int, ...]]:
    return [tuple(row) for row in rng.choice(len(shares), (count, 4), p=shares).tolist()]


@pytest.mark.parametrize("length", [1, 2, 4])
def test_one_distribution_passes_as_often_as_its_p_value_says_and_another_never(length: int) -> None:
    rng = np.random.default_rng(length)
    plain = [0.7, 0.2, 0.1]
    same = [p_value(answers(rng, plain), answers(rng, plain), length) for _ in range(200)]
    other = [p_value(answers(rng, plain), answers(rng, [0.55, 0.3, 0.15]), length) for _ in range(20)]
    assert 0.3 < np.mean(np.array(same) < 0.5) < 0.7
    assert max(other) < 1e-3


def test_answers_that_are_all_alike_do_not_differ() -> None:
    assert p_value([(1, 2)] * 50, [(1, 2)] * 50, 2) == 1
    assert p_value([(1, 2)] * 50, [(1, 3)] * 50, 2) < 1e-6
