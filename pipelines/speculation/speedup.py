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
    plain_ms, token_ms = cost.pass_ms([(1, context)]), draft.pass_ms(1)
    best, tokens, pass_ms = Speedup(0, 1.0), 1.0, plain_ms + draft.beginning_ms()
    for length, row_ms in enumerate(cost.rows_ms(1, 1, context, longest), 1):
        tokens, pass_ms = tokens + first * acceptance ** (length - 1), pass_ms + row_ms + token_ms
        ratio = tokens * plain_ms / pass_ms
        if ratio > best.ratio:
            best = Speedup(length, ratio)
    return best
