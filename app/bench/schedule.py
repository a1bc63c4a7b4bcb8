"""The best possible schedule: with the answer known, what would the fewest milliseconds have been?

What a drafter proposes changes no token, so its proposals can be looked up afterwards for every position, and the
cheapest way through the answer is found by dynamic programming.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from outrider.pipelines.speculation.draft import LONGEST
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.drafters.draft_model import DraftModel


class Cost(Protocol):
    """Times in milliseconds; `CostModel` is one."""

    def pass_ms(self, windows: Sequence[tuple[int, int]]) -> float:
        """The time of a pass over windows of (rows, context)."""
        ...

    def of_draft(self, name: str) -> DraftCost:
        """What the model of a drafter takes; only its measured costs are used."""
        ...


@dataclass(frozen=True, slots=True)
class Foresight:
    """What the drafters would have proposed correctly, at every position of an answer.

    from_text: for each token, how many tokens from it on the best drafter without a model would have proposed
        correctly.
    by_model: for each token, whether the draft model would have proposed it; all False where there is none.
    from_start: by the name of the drafter, for each token, how many tokens from it on a head would have proposed
        correctly in a draft that begins there; the same for the layers of the target that draft.
    """

    num_prompt_tokens: int
    from_text: tuple[int, ...]
    by_model: tuple[bool, ...]
    from_start: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def best_ms(foresight: Foresight, cost: Cost, longest: int = LONGEST) -> float:
    """The least time for all tokens after the first.

    A pass takes a draft of at most `longest` right tokens, from the text and from the draft model in any order, and
    yields one more. The model is paid for each token that it writes and for each further one that it has to be fed, but
    only up to the last one that it writes. A head, or the target itself, may write the first tokens of a draft, and is
    paid for these.
    """
    length, row_ms = len(foresight.from_text), cost.of_draft(DraftModel.name).row_ms
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
            fed = (drafted + 1) * row_ms
            done[at] = min(done[at], spent + without[drafted] + done[end])
            more[at] = min(
                more[at],
                spent + last[drafted] + done[end],
                spent + min(without[drafted], again[drafted]) + fed + more[end],
            )
    return min(done[1], (foresight.num_prompt_tokens + 1) * row_ms + more[1])


def _drafts(foresight: Foresight, cost: Cost, at: int, room: int) -> tuple[list[float], list[float], list[float]]:
    """The least time that the draft model takes for a right draft of each length up to `room`.

    First where it is not used, then where it is used here for the last time, and where it is used again later. A token
    that it writes saves feeding it the token before; in the last case all else that it is fed is left to be added.
    """
    without, last, again = [0.0] + [math.inf] * room, [math.inf] * (room + 1), [math.inf] * (room + 1)
    model = cost.of_draft(DraftModel.name)
    for name, num_right in foresight.from_start.items():
        beginner = cost.of_draft(name)
        for length in range(1, min(room, num_right[at]) + 1):
            without[length] = min(without[length], beginner.begin_ms + length * beginner.token_ms)
    for depth in range(room):
        for end in range(depth + 1, min(room, depth + foresight.from_text[at + depth]) + 1):
            for times in (without, last, again):
                times[end] = min(times[end], times[depth])
        if foresight.by_model[at + depth]:
            written = min(without[depth], again[depth]) + model.token_ms - model.row_ms
            again[depth + 1] = min(again[depth + 1], written)
            last[depth + 1] = min(last[depth + 1], written + depth * model.row_ms)
    return without, last, again


def run_ms(windows: Sequence[tuple[int, int]], draft_ms: float, cost: Cost) -> float:
    """The time of passes over (rows, context) by the same cost model, and of what models that draft took meanwhile."""
    return sum(cost.pass_ms([window]) for window in windows) + draft_ms
