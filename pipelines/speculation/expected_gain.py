"""ExpectedGain: the tokens that a draft is expected to add, less what its time is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .cost import CostModel
from .draft import Draft, best_prefix
from .draft_cost import DraftCost
from .expected_acceptance import Expected

FOUND = 0.55  # share of the wrong tokens in copied drafts that a draft model finds by scoring: 150 of 275


@dataclass(frozen=True, slots=True)
class ExpectedGain:
    """Expected gains in tokens, at a price of `rate` tokens per millisecond. In all methods `rows` is the size of the
    pass without the draft, except in `of_generating`, where it includes the tokens that are kept of it.

    draft_cost: what the model that drafts takes.
    expected: how likely its proposals are to be accepted.
    python_row_ms: Python's time for each drafted row.
    reads_ahead: whether it reads several tokens of a draft in one pass; otherwise each takes a pass.
    depth: tokens of a draft that it can generate or score at most; None: any number.
    last_rows: the size of the last pass, on which the prices in the next one depend (see `PassSize`).
    """

    cost: CostModel
    draft_cost: DraftCost
    rate: float
    expected: Expected
    python_row_ms: float = 0.0
    reads_ahead: bool = True
    depth: int | None = None
    last_rows: int = 0

    def row_prices(self, draft: Draft, rows: int) -> list[float]:
        """The prices of the rows of a draft, in tokens."""
        prices_ms = self.cost.rows_ms(rows, 1, draft.context, len(draft.probabilities), self.last_rows)
        return [self.rate * (ms + self.python_row_ms) for ms in prices_ms]

    def feeding_ms(self, num_behind: int, length: int) -> float:
        """The time that the draft model takes to catch up with a request, and with `length` tokens of its draft, and to
        begin. It has to pay within this pass, since the answer may end with it."""
        return self._feedings_ms(num_behind, length, length)[0]

    def of_draft(self, draft: Draft, rows: int) -> float:
        """The gain of a draft as it is."""
        return sum(draft.probabilities) - sum(self.row_prices(draft, rows))

    def of_generating(
        self,
        draft: Draft,
        length: int,
        rows: int,
        feeding_ms: float,
        num_sharing: int,
        most_ms: float = math.inf,
        goes_on: bool = False,
    ) -> float:
        """The gain of the tokens that the draft model would generate after the first `length` tokens of a draft, with
        at most `most_ms` for its passes and their rows.

        The draft model first catches up in `feeding_ms`, and `num_sharing` requests share its passes.

        goes_on: whether it has written the last of these tokens.
        """
        draft_ms = self.draft_cost.pass_ms(num_sharing) / num_sharing
        token_ms = self.python_row_ms + draft_ms
        reached = draft.probabilities[length - 1] if length else 1.0
        probabilities: list[float] = []
        prices_ms: list[float] = []
        most = draft.limit if self.depth is None else min(draft.limit, self.depth)
        while len(probabilities) < most - length:
            reached *= self.expected.following if goes_on or probabilities else self.expected.first
            least_ms = self.cost.least_row_ms(rows + len(probabilities), self.last_rows)
            if reached < self.rate * (least_ms + token_ms):
                break
            probabilities.append(reached)
        for row_ms in self.cost.rows_ms(rows, 1 + length, draft.context, len(probabilities), self.last_rows):
            price_ms = row_ms + token_ms
            most_ms -= price_ms
            if most_ms < feeding_ms:
                break
            prices_ms.append(price_ms)
        return best_prefix(probabilities[: len(prices_ms)], prices_ms, self.rate)[1] - self.rate * feeding_ms

    def of_scoring(self, draft: Draft, length: int, rows: int, num_behind: int, num_sharing: int) -> tuple[float, int]:
        """The gain of having the draft model score a draft, and the number of scored tokens with which it is highest.
        Without scores, `length` of its tokens would be drafted.

        Where the draft model disagrees, its own token takes the place of the draft's, and the rows after it are saved.
        If it agrees with all that it scores, the rest of the draft is kept.
        """
        prices = self.row_prices(draft, rows)
        unscored = sum(draft.probabilities[:length]) - sum(prices[:length])
        rest, rest_price = sum(draft.probabilities), sum(prices)
        scoring_ms = self.draft_cost.pass_ms(num_sharing) / num_sharing
        gain, reached = 0.0, 1.0
        best, best_length = -math.inf, 0
        scored = list(zip(draft.probabilities, prices, strict=True))[: self.depth]
        feedings_ms = self._feedings_ms(num_behind, 1, len(scored))
        for num_scored, ((probability, price), feeding_ms) in enumerate(zip(scored, feedings_ms, strict=True), 1):
            gain += probability + (reached - probability) * self.expected.first - reached * price
            rest, rest_price, reached = rest - probability, rest_price - price, probability
            found = gain + max(0.0, rest - reached * rest_price)
            total = FOUND * found + (1 - FOUND) * unscored - self.rate * (scoring_ms + feeding_ms)
            if total > best:
                best, best_length = total, num_scored
        return best, best_length

    def _feedings_ms(self, num_behind: int, first: int, last: int) -> list[float]:
        """As `feeding_ms`, for each length from `first` to `last`."""
        cost, begin_ms, behind = self.draft_cost, self.draft_cost.beginning_ms(), num_behind - 1
        if self.reads_ahead:
            return [begin_ms + ms for ms in cost.feedings_ms(behind + first, behind + last)]
        begin_ms, token_ms = begin_ms + cost.feeding_ms(behind), cost.pass_ms(1)
        return [begin_ms + length * token_ms for length in range(first, last + 1)]
