"""What a turn says about itself."""

from __future__ import annotations

import pytest

from outrider.app.chat.core.conversation import Turn


@pytest.mark.parametrize(
    ("token_ids", "looping"),
    [
        ([*range(100), *[7] * 48], True),
        ([*range(100), *[7] * 47], False),
        ([1, 2, 3] * 16, True),
        (list(range(20)) * 4, True),
        (list(range(20)) * 3, False),
        (list(range(65)) * 8, False),
        ([*[7] * 48, 8], False),
        ([], False),
    ],
)
def test_an_answer_loops_that_ends_in_the_same_tokens_again_and_again(token_ids: list[int], looping: bool) -> None:
    assert Turn("Hello", token_ids=tuple(token_ids)).is_looping == looping
