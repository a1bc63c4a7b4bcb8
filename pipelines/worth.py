"""Worth: what drafts are expected to bring, in tokens, beyond what their time is worth."""

from __future__ import annotations

from dataclasses import dataclass

from .cost import CostModel
from .turn import Turn

FOUND = 0.7  # share of what a text's draft gets wrong that a model is taken to find when it reads the draft


@dataclass(frozen=True, slots=True)
class Worth:
    """Prices at a rate of so many tokens per millisecond. `rows` is everywhere what the pass has without the draft.

    expected: the probability that the draft model's next proposal stands.
    """

    cost: CostModel
    rate: float
    expected: float

    def row(self, rows: int, window: int, context: int) -> float:
        """The price of one more row, in a window that has `window`."""
        return self.rate * self.cost.row_ms(rows, window, context)

    def feeding_ms(self, num_behind: int, length: int) -> float:
        """The time in which the draft model is fed what it missed, and so many tokens of a draft. It has to pay at
        once: most answers are short, and what a later pass will need is not known."""
        return self.cost.feeding_ms(num_behind - 1 + length)

    def of_draft(self, turn: Turn, rows: int) -> float:
        worth = 0.0
        for window, survival in enumerate(turn.survivals, 1):
            worth += survival - self.row(rows, window, turn.context)
            rows += 1
        return worth

    def of_writing(self, turn: Turn, length: int, rows: int, num_behind: int, num_sharing: int) -> float:
        """Of what the draft model would write behind the first `length` tokens of a draft.

        It has `num_behind` tokens to be fed first, and `num_sharing` sequences share its passes.
        """
        draft_ms = self.cost.draft_pass_ms(num_sharing) / num_sharing
        survival = turn.survivals[length - 1] if length else 1.0
        worth = -self.rate * self.feeding_ms(num_behind, length)
        best = worth
        for window in range(1 + length, 1 + turn.limit):
            survival *= self.expected
            worth += survival - self.row(rows, window, turn.context) - self.rate * draft_ms
            rows += 1
            best = max(best, worth)
        return best

    def of_reading(self, turn: Turn, length: int, rows: int, num_behind: int, num_sharing: int) -> float:
        """Of a draft that the draft model has read, of which `length` tokens would be taken otherwise.

        Where it finds a token wrong it writes another, and the rows behind are saved.
        """
        worth = unread = 0.0
        reached = 1.0
        for window, survival in enumerate(turn.survivals, 1):
            price = self.row(rows, window, turn.context)
            worth += survival + (reached - survival) * self.expected - reached * price
            if window <= length:
                unread += survival - price
            rows += 1
            reached = survival
        reading_ms = self.cost.draft_pass_ms(num_sharing) / num_sharing
        worth = FOUND * worth + (1 - FOUND) * unread
        return worth - self.rate * (reading_ms + self.feeding_ms(num_behind, len(turn.draft)))
