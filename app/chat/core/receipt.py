"""Receipt: an answer compared with its replay without drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the replay showed.

    num_tokens: of the replay. differs_at: the first token that is another, counted from 0; None where all are the same.
    plain_s, drafted_s: seconds from the first token to the last of the replay, and of the answer. Reading the prompt is
    left out, since its second reading finds it in the cache.
    """

    num_tokens: int
    differs_at: int | None
    plain_s: float
    drafted_s: float

    @property
    def ratio(self) -> float | None:
        """How many times as long the replay took; None where there was nothing to time."""
        return self.plain_s / self.drafted_s if self.drafted_s > 0 else None

    @property
    def plain_ms(self) -> float | None:
        """What a plain pass took, on average; None where there was none behind the first token."""
        return 1e3 * self.plain_s / (self.num_tokens - 1) if self.num_tokens > 1 else None


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two answers part; None where they are the same."""
    if one == other:
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
