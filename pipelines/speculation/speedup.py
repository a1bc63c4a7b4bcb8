"""Speedup: what drafts of a fixed length would bring at a constant rate of acceptance."""

from __future__ import annotations

from dataclasses import dataclass

from .cost import CostModel
from .draft import LONGEST
from .draft_cost import DraftCost

CONTEXT = 256  # tokens before the answer


@dataclass(frozen=True, slots=True)
class Speedup:
    """The best fixed draft length, and the speed with it over that of plain decoding."""

    length: int
    ratio: float


def speedup_of(
    cost: CostModel,
    acceptance: float,
    draft: DraftCost,
    longest: int = LONGEST,
    context: int = CONTEXT,
    first: float | None = None,
) -> Speedup:
    """The best speedup at an acceptance rate in 0..1 with a drafter whose costs are `draft`, and drafts of up to
    `longest` tokens, after `context` tokens.

    A pass with a draft of n tokens yields 1 + a + a^2 + ... + a^n tokens (Leviathan et al., arXiv 2211.17192).

    first: the rate of the first token of a draft, if it is another; b + b a + ... + b a^(n - 1) then comes after the 1.
    """
    first = acceptance if first is None else first
    plain_ms = cost.pass_ms([(1, context)])

    def ratio(length: int) -> float:
        tokens = 1 + first * sum(acceptance**i for i in range(length))
        draft_ms = length * draft.pass_ms(1) + (draft.beginning_ms() if length else 0.0)
        return tokens * plain_ms / (cost.pass_ms([(1 + length, context)]) + draft_ms)

    return max((Speedup(length, ratio(length)) for length in range(longest + 1)), key=lambda found: found.ratio)
