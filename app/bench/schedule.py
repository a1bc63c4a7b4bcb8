"""The best possible schedule: with the answer known, what would the fewest milliseconds have been?

What a drafter proposes changes no token, so its proposals can be looked up afterwards for every position, and the
cheapest way through the answer is found by dynamic programming.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.pipelines.speculation.planner import LONGEST


class Cost(Protocol):
    """Times in milliseconds; `outrider.pipelines.speculation.cost.CostModel` is one."""

    draft_ms: float
    draft_row_ms: float
    head_ms: float
    head_begin_ms: float

    def pass_ms(self, windows: Sequence[tuple[int, int]]) -> float:
        """The time of a pass over windows of (rows, context)."""
        ...


@dataclass(frozen=True, slots=True)
class Foresight:
    """What the drafters would have proposed correctly, at every position of an answer.

    from_text: for each token, how many tokens from it on the best drafter without a model would have proposed
        correctly.
    by_model: for each token, whether the draft model would have proposed it; all False where there is none.
    by_head: for each token, how many tokens from it on the head would have proposed correctly; all 0 where there is
        none.
    """

    num_prompt_tokens: int
    from_text: tuple[int, ...]
    by_model: tuple[bool, ...]
    by_head: tuple[int, ...]


def best_ms(foresight: Foresight, cost: Cost, longest: int = LONGEST) -> float:
    """The least time for all tokens after the first.

    A pass takes a draft of at most `longest` right tokens, from the text and from the draft model in any order, and
    yields one more. The model is paid for each token that it writes, and for each that it has to be fed besides, but
    only up to the last that it writes. The head may write the first tokens of a draft, and is paid for these.
    """
    length = len(foresight.from_text)
    if length < 2:
        return 0.0
    done = [math.inf] * length + [0.0]  # least time from here where the model is not used any more
    more = [math.inf] * (length + 1)  # and where it is used once more at least
    for at in reversed(range(1, length)):
        room = min(longest, length - at - 1)  # the pass itself yields the last token
        without, last, again = _drafts(foresight, cost, at, room)
        for drafted in range(room + 1):
            end = at + drafted + 1
            spent = cost.pass_ms([(1 + drafted, foresight.num_prompt_tokens + at - 1)])
            fed = (drafted + 1) * cost.draft_row_ms
            done[at] = min(done[at], spent + without[drafted] + done[end])
            more[at] = min(
                more[at],
                spent + last[drafted] + done[end],
                spent + min(without[drafted], again[drafted]) + fed + more[end],
            )
    return min(done[1], (foresight.num_prompt_tokens + 1) * cost.draft_row_ms + more[1])


def _drafts(foresight: Foresight, cost: Cost, at: int, room: int) -> tuple[list[float], list[float], list[float]]:
    """The least time that the draft model takes for a right draft of each length up to `room`.

    First where it is not used, then where it is used here for the last time, and where it is used again later. A token
    that it writes saves feeding it the token before; in the last case all else that it is fed is left to be added.
    """
    without, last, again = [0.0] + [math.inf] * room, [math.inf] * (room + 1), [math.inf] * (room + 1)
    for length in range(1, min(room, foresight.by_head[at]) + 1):
        without[length] = cost.head_begin_ms + length * cost.head_ms
    for depth in range(room):
        for end in range(depth + 1, min(room, depth + foresight.from_text[at + depth]) + 1):
            for times in (without, last, again):
                times[end] = min(times[end], times[depth])
        if foresight.by_model[at + depth]:
            written = min(without[depth], again[depth]) + cost.draft_ms - cost.draft_row_ms
            again[depth + 1] = min(again[depth + 1], written)
            last[depth + 1] = min(last[depth + 1], written + depth * cost.draft_row_ms)
    return without, last, again


def run_ms(windows: Sequence[tuple[int, int]], draft_ms: float, cost: Cost) -> float:
    """The time of passes over (rows, context) in the same cost model, and of what the draft model took meanwhile."""
    return sum(cost.pass_ms([window]) for window in windows) + draft_ms
