"""Constraint: what a grammar lets one answer be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from .errors import InvalidOption

REMEMBERED = 64  # positions whose masks are kept: what drafting asks, verification asks again

Allowed = NDArray[np.bool_]  # [tokens of the vocabulary]


class Constraint:
    """Answers what may follow any beginning of an answer; what it was asked before makes no difference.

    It keeps the grammar's state behind the beginning that was asked for last, and goes from there: a draft, its
    verification and the next draft ask for beginnings that have most in common. `end` is the id that stands for the end
    of an answer in `matcher`, behind the vocabulary; `ends` are those that a model may write for it.

    Every method raises InvalidOption where llguidance gives up, as on a grammar that is too complex. It has then
    forgotten what it was asked, since that may have been a draft, and the answer itself can be simpler.
    """

    def __init__(self, matcher: LLMatcher, end: int, ends: frozenset[int]) -> None:
        self._fresh = matcher.deep_copy()  # a matcher that has given up does not come back, not by a reset either
        self._matcher = matcher
        self._end = end
        self._ends = ends
        self._known: list[int] = []  # the beginning that was asked for last, or one that goes on behind it
        self._at = 0  # how many tokens of it the matcher has read
        self._masks: dict[int, bytes] = {}  # behind so many tokens of it

    def allowed(self, answer: Sequence[int]) -> Allowed | None:
        """Whether each token of the vocabulary may follow; None where the answer is over, so that nothing does.

        Raises InvalidOption where no token can write what the grammar wants.
        """
        if self.is_complete(answer):
            return None
        bits = np.unpackbits(np.frombuffer(self._mask(), np.uint8), count=self._end + 1, bitorder="little")
        allowed = bits[: self._end].astype(np.bool_)
        if bits[self._end]:
            allowed[sorted(self._ends)] = True
        if not allowed.any():
            raise InvalidOption(
                "No token of this model's vocabulary goes on as structured_output_config demands: give another one."
            )
        return allowed

    def allows(self, answer: Sequence[int], token: int) -> bool:
        """Whether one token may follow."""
        if self.is_complete(answer):
            return False
        asked = self._end if token in self._ends else token
        return asked <= self._end and bool(self._mask()[asked // 8] >> asked % 8 & 1)

    def is_complete(self, answer: Sequence[int]) -> bool:
        """Whether the answer is over: an end was written, or nothing can follow that the grammar allows."""
        return not self._go_to(answer) or self._is_over()

    def forced(self, answer: Sequence[int]) -> int | None:
        """The only token that may follow, if there is but one."""
        if self.is_complete(answer):
            return None
        mask = int.from_bytes(self._mask(), "little")
        return mask.bit_length() - 1 if mask.bit_count() == 1 else None

    def _go_to(self, answer: Sequence[int]) -> bool:
        """Bring the matcher behind a beginning; False where the answer is over before that."""
        answer = list(answer)
        same = min(len(answer), self._at)
        while self._known[:same] != answer[:same]:
            same -= 1
        if same < self._at:
            self._matcher.rollback(self._at - same)
            self._check()
            self._at = same
        for token in answer[same:]:
            if token in self._ends or self._is_over():
                return False
            self._matcher.consume_token(token)
            self._check()
            if self._known[self._at : self._at + 1] != [token]:
                self._known[self._at :] = [token]
                self._masks = {at: mask for at, mask in self._masks.items() if at <= self._at}
            self._at += 1
        return True

    def _is_over(self) -> bool:
        return self._matcher.is_accepting() and int.from_bytes(self._mask(), "little") == 1 << self._end

    def _mask(self) -> bytes:
        """A bit for each token, and one for the end."""
        if self._at not in self._masks:
            if len(self._masks) == REMEMBERED:
                del self._masks[min(self._masks)]
            self._masks[self._at] = self._matcher.compute_bitmask()
            self._check()
        return self._masks[self._at]

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().splitlines()[0]
            self._matcher = self._fresh.deep_copy()
            self._known, self._at, self._masks = [], 0, {}
            raise InvalidOption(f"structured_output_config cannot be followed any further ({reason}): make it simpler.")
