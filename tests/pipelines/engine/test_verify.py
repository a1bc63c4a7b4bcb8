"""Which draft tokens stand: the answer is the target's, whatever was drafted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.pipelines.engine.verify import verify

TOKENS = st.integers(0, 3)  # so few that random drafts are often right


def target(prefix: tuple[int, ...]) -> int:
    """A target's choice that depends on all tokens before it."""
    return hash(("target", prefix)) % 4


def rows_of(draft: list[int]) -> np.ndarray:
    """Row i carries the target's token after the first i draft tokens."""
    return np.array([[target(tuple(draft[:i]))] for i in range(len(draft) + 1)], np.float32)


def choose(row: np.ndarray, kept: list[int]) -> int:
    return int(row[0])


@given(st.lists(TOKENS, max_size=8))
def test_what_is_kept_is_what_the_target_writes_alone(draft):
    kept = verify(rows_of(draft), draft, choose)
    plain: list[int] = []
    while len(plain) < len(kept):
        plain.append(target(tuple(plain)))
    assert kept == plain


@given(st.lists(TOKENS, max_size=8))
def test_tokens_are_kept_up_to_and_including_the_first_correction(draft):
    kept = verify(rows_of(draft), draft, choose)
    agreed = next((i for i in range(len(draft)) if target(tuple(draft[:i])) != draft[i]), len(draft))
    assert kept[:-1] == draft[:agreed]
    assert len(kept) == agreed + 1


def test_a_draft_that_is_always_right_is_kept_whole_with_one_token_more():
    draft: list[int] = []
    for _ in range(6):
        draft.append(target(tuple(draft)))
    assert verify(rows_of(draft), draft, choose) == [*draft, target(tuple(draft))]


def test_a_draft_that_is_always_wrong_leaves_the_target_its_one_token():
    draft = [(target(()) + 1) % 4] * 6
    assert verify(rows_of(draft), draft, choose) == [target(())]


@given(st.lists(TOKENS, max_size=8))
def test_the_target_is_asked_once_a_row_in_order_and_never_behind_a_rejection(draft):
    asked: list[list[int]] = []

    def choose_and_note(row: np.ndarray, kept: list[int]) -> int:
        asked.append(list(kept))
        return int(row[0])

    kept = verify(rows_of(draft), draft, choose_and_note)
    assert asked == [kept[:i] for i in range(len(kept))]


@given(st.lists(TOKENS, max_size=8), st.integers(0, 8))
def test_a_row_that_fails_ends_what_is_kept_before_it(draft, place):
    def choose_or_fail(row: np.ndarray, kept: list[int]) -> int:
        if len(kept) >= place:
            raise ValueError("nan")
        return int(row[0])

    if place == 0:
        with pytest.raises(ValueError, match="nan"):
            verify(rows_of(draft), draft, choose_or_fail)
    else:
        assert verify(rows_of(draft), draft, choose_or_fail) == verify(rows_of(draft), draft, choose)[:place]


def test_a_proposal_that_no_token_can_equal_is_rejected():
    assert verify(np.array([[2.0], [3.0]]), [None], choose) == [2]  # type: ignore[list-item]
