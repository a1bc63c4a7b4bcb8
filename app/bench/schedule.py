"""The best possible schedule: with the answer known, what would the fewest milliseconds have been?

What a drafter proposes changes no token, so its proposals can be looked up afterwards for every position, and the
cheapest way through the answer is found by dynamic programming.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.pipelines.planner import LONGEST


class Cost(Protocol):
    """Times in milliseconds; `outrider.pipelines.cost.CostModel` is one."""

    draft_ms: float
    draft_row_ms: float

    def pass_ms(self, windows: Sequence[tuple[int, int]]) -> float:
        """The time of a pass over windows of (rows, context)."""
        ...


@dataclass(frozen=True, slots=True)
class Foresight:
    """What the drafters would have known about an answer.

    from_text: for each of its tokens, how many tokens from there on some drafter without a model would have proposed
        rightly if asked just before.
    by_model: for each token, whether the draft model would have proposed it; all False where there is none.
    """

    num_prompt_tokens: int
    from_text: tuple[int, ...]
    by_model: tuple[bool, ...]


def best_ms(foresight: Foresight, cost: Cost, longest: int = LONGEST) -> float:
    """The least time for all tokens after the first.

    A pass takes `a` right tokens from the text and `b` right ones that the draft model writes behind them, `longest` in
    all at most, and yields one more token. The model is paid for each token that it writes, and for each that it has to
    be fed besides, but only up to the last time that it is used.
    """
    length = len(foresight.from_text)
    run = [0] * (length + 1)  # right tokens in a row of the draft model
    for at in reversed(range(length)):
        run[at] = run[at + 1] + 1 if foresight.by_model[at] else 0
    done = [math.inf] * length + [0.0]  # least time from here where the model is not used any more
    more = [math.inf] * (length + 1)  # and where it is used once more at least
    for at in reversed(range(1, length)):
        room = min(longest, length - at - 1)  # the pass itself yields the last token
        context = foresight.num_prompt_tokens + at - 1
        passes = [cost.pass_ms([(1 + drafted, context)]) for drafted in range(room + 1)]
        for a in range(min(room, foresight.from_text[at]) + 1):
            end = at + a + 1
            done[at] = min(done[at], passes[a] + done[end])
            more[at] = min(more[at], passes[a] + (a + 1) * cost.draft_row_ms + more[end])
            for b in range(1, min(room - a, run[at + a]) + 1):
                spent = passes[a + b] + b * cost.draft_ms + a * cost.draft_row_ms
                more[at] = min(more[at], spent + done[end + b], spent + cost.draft_row_ms + more[end + b])
    if length < 2:
        return 0.0
    return min(done[1], foresight.num_prompt_tokens * cost.draft_row_ms + more[1])


def run_ms(windows: Sequence[tuple[int, int]], draft_ms: float, cost: Cost) -> float:
    """The time of passes over (rows, context) in the same cost model, and of what the draft model took meanwhile."""
    return sum(cost.pass_ms([window]) for window in windows) + draft_ms
