"""Worth: what drafts are expected to bring, in tokens, beyond what their time is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .cost import CostModel
from .draft import Draft, best_prefix

FOUND = 0.55  # share of what is wrong in drafts that a model finds when it reads them: 150 of 275 were found


@dataclass(frozen=True, slots=True)
class Worth:
    """Prices at a rate of so many tokens per millisecond. `rows` is everywhere what the pass has without the draft.

    expected: the probability that the draft model's next proposal stands.
    python_row_ms: Python's time for a row.
    """

    cost: CostModel
    rate: float
    expected: float
    python_row_ms: float = 0.0

    def row(self, rows: int, window: int, context: int) -> float:
        """The price of one more row, in a window that has `window`."""
        return self.rate * (self.cost.row_ms(rows, window, context) + self.python_row_ms)

    def feeding_ms(self, num_behind: int, length: int) -> float:
        """The time in which the draft model is fed what it missed, and so many tokens of a draft. It has to pay at
        once: most answers are short, and what a later pass will need is not known."""
        return self.cost.feeding_ms(num_behind - 1 + length)

    def of_draft(self, draft: Draft, rows: int) -> float:
        worth = 0.0
        for window, probability in enumerate(draft.probabilities, 1):
            worth += probability - self.row(rows, window, draft.context)
            rows += 1
        return worth

    def of_writing(
        self, draft: Draft, length: int, rows: int, feeding_ms: float, num_sharing: int, most_ms: float = math.inf
    ) -> float:
        """Of what the draft model would write behind the first `length` tokens of a draft, as far as that takes
        `most_ms`, rows included.

        Feeding it what it lacks takes `feeding_ms`, and `num_sharing` requests share its passes.
        """
        draft_ms = self.cost.draft_pass_ms(num_sharing) / num_sharing
        least_ms = self.cost.least_row_ms + self.python_row_ms + draft_ms
        reached = draft.probabilities[length - 1] if length else 1.0
        probabilities: list[float] = []
        prices_ms: list[float] = []
        for window in range(1 + length, 1 + draft.limit):
            reached *= self.expected
            if reached < self.rate * least_ms:  # nor do those behind it
                break
            row_ms = self.cost.row_ms(rows + len(prices_ms), window, draft.context) + self.python_row_ms
            most_ms -= row_ms + draft_ms
            if most_ms < feeding_ms:
                break
            probabilities.append(reached)
            prices_ms.append(row_ms + draft_ms)
        return best_prefix(probabilities, prices_ms, self.rate)[1] - self.rate * feeding_ms

    def of_reading(self, draft: Draft, length: int, rows: int, num_behind: int, num_sharing: int) -> tuple[float, int]:
        """Of a draft that the draft model has read as far as that is worth most, and how far that is; `length` of its
        tokens would be taken otherwise.

        Where it finds a token wrong it writes another, and the rows behind are saved. What lies behind the part that it
        has read is taken if all of that part agrees.
        """
        prices = [self.row(rows + i, 1 + i, draft.context) for i in range(len(draft.probabilities))]
        unread = sum(draft.probabilities[:length]) - sum(prices[:length])
        rest, rest_price = sum(draft.probabilities), sum(prices)
        reading_ms = self.cost.draft_pass_ms(num_sharing) / num_sharing
        worth, reached = 0.0, 1.0
        best, best_length = -math.inf, 0
        for num_read, (probability, price) in enumerate(zip(draft.probabilities, prices, strict=True), 1):
            worth += probability + (reached - probability) * self.expected - reached * price
            rest, rest_price, reached = rest - probability, rest_price - price, probability
            found = worth + max(0.0, rest - reached * rest_price)
            spent_ms = reading_ms + self.feeding_ms(num_behind, num_read)
            total = FOUND * found + (1 - FOUND) * unread - self.rate * spent_ms
            if total > best:
                best, best_length = total, num_read
        return best, best_length
