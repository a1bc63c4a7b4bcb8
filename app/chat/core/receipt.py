"""The comparison of an answer with its replay without drafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Receipt:
    """num_tokens: of the replay. differs_at: the index of the first different token; None if all are the same.

    plain_s, drafted_s: seconds from the first token to the last, of the replay and of the answer. The prefill is left
    out, since the replay finds the prompt in the cache.
    """

    num_tokens: int
    differs_at: int | None
    plain_s: float
    drafted_s: float

    @property
    def ratio(self) -> float | None:
        """plain_s / drafted_s; None if one of them took no time."""
        return self.plain_s / self.drafted_s if min(self.plain_s, self.drafted_s) > 0 else None

    @property
    def plain_ms(self) -> float | None:
        """The mean time of a plain pass; None if there was only the first token."""
        return 1e3 * self.plain_s / (self.num_tokens - 1) if self.num_tokens > 1 else None


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The index at which two sequences first differ; None if they are equal."""
    if one == other:
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
