"""Constraint: which tokens a grammar allows at each position of an answer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from ..errors import InvalidOption

DEAD_END = "NoExtensionBias"  # llguidance's reason where nothing can follow
REMEMBERED = 64  # positions whose masks are cached: verification asks again what drafting asked

Allowed = NDArray[np.bool_]  # [tokens of the vocabulary]
T = TypeVar("T")


class _GivenUp(Exception):
    """The matcher has failed for good: a reset does not help."""


class Constraint:
    """Tells which tokens may follow any beginning of an answer. The result does not depend on earlier calls.

    The matcher keeps its state after the beginning that was asked about last, and goes back or on from there, since a
    draft, its verification and the next draft ask about beginnings that have most tokens in common.

    matcher: llguidance's matcher of the grammar; `make` makes another one.
    end: the id in the matcher that stands for the end of an answer, after all token ids.
    ends: the ids of tokens with which the model may end an answer.

    Every method raises InvalidOption if llguidance gives up, for example on a grammar that is too complex.
    """

    def __init__(self, matcher: LLMatcher, make: Callable[[], LLMatcher], end: int, ends: frozenset[int]) -> None:
        self._make = make
        self._end = end
        self._ends = ends
        self._begin(matcher)

    def _begin(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._known: list[int] = []  # the beginning asked for last, or a longer one
        self._at = 0  # how many of its tokens the matcher has consumed
        self._masks: dict[int, bytes] = {}  # by number of consumed tokens
        self._strayed = False  # whether the matcher has consumed tokens that were rolled back

    def copy(self) -> Constraint:
        """A constraint for another answer, without compiling the grammar again."""
        other = copy.copy(self)
        other._matcher, other._known, other._masks = self._matcher.deep_copy(), [*self._known], {**self._masks}
        return other

    def allowed(self, answer: Sequence[int]) -> Allowed | None:
        """Which tokens of the vocabulary may follow, bool [vocabulary]; None if the answer is over.

        Raises InvalidOption if no token can continue as the grammar demands.
        """
        if (mask := self._mask_behind(answer)) is None:
            return None
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=self._end + 1, bitorder="little")
        allowed = bits[: self._end].astype(np.bool_)
        if bits[self._end]:
            allowed[sorted(self._ends)] = True
        if not allowed.any():
            raise _stuck()
        return allowed

    def allows(self, answer: Sequence[int], token: int) -> bool:
        """Whether one token may follow."""
        if (mask := self._mask_behind(answer)) is None:
            return False
        asked = self._end if token in self._ends else token
        return asked <= self._end and bool(mask[asked // 8] >> asked % 8 & 1)

    def is_complete(self, answer: Sequence[int]) -> bool:
        """Whether the answer is over: it has an end token, or the grammar allows nothing else."""
        return self._mask_behind(answer) is None

    def forced(self, answer: Sequence[int]) -> int | None:
        """The token that must follow, or None if several may."""
        if (mask := self._mask_behind(answer)) is None:
            return None
        bits = int.from_bytes(mask, "little")
        return bits.bit_length() - 1 if bits.bit_count() == 1 else None

    def _mask_behind(self, answer: Sequence[int]) -> bytes | None:
        """A bit for each token that may follow and one for the end; None if the answer is over.

        Tokens of rejected drafts count towards llguidance's limits, but drafts must not change an answer. So if the
        matcher gives up after consuming such tokens, a new one is asked, which consumes nothing but this answer.
        """
        try:
            return self._mask_if_any(answer)
        except _GivenUp as error:
            strayed = self._strayed
            self._begin(self._make())
            if strayed:
                return self._mask_behind(answer)
            if str(error) == DEAD_END:
                raise _stuck() from error
            raise InvalidOption(
                f"structured_output_config cannot be followed any further ({error}): make it simpler."
            ) from error

    def _mask_if_any(self, answer: Sequence[int]) -> bytes | None:
        return None if not self._go_to(answer) or self._is_over() else self._mask()

    def _go_to(self, answer: Sequence[int]) -> bool:
        """Have the matcher consume a beginning of the answer; False if the answer is over before its end."""
        answer = list(answer)
        same = min(len(answer), self._at)
        while self._known[:same] != answer[:same]:
            same -= 1
        if same < self._at:
            self._strayed = True
            self._matcher.rollback(self._at - same)
            self._check()
            self._at = same
        for token in answer[same:]:
            self._mask()  # masks count towards the limits as well, and plain decoding computes each of them
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
        """A bit for each token and one for the end."""
        if self._at not in self._masks:
            if len(self._masks) == REMEMBERED:
                del self._masks[min(self._masks)]
            self._masks[self._at] = self._matcher.compute_bitmask()
            self._check()
        return self._masks[self._at]

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _GivenUp(self._matcher.get_error().splitlines()[0])


def _stuck() -> InvalidOption:
    return InvalidOption(
        "No token of this model's vocabulary can continue the answer under structured_output_config: change "
        "the schema, regex or grammar."
    )
