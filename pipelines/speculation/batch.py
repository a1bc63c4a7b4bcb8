"""Batch: the next pass of the target, and what drafting for it may take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from .cost import CostModel
from .draft import Draft, best_prefix
from .drafters.base import Proposal
from .overhead import Usual


class _Priced(NamedTuple):
    """The prices of a draft's next rows from its `length` on, in a pass with so many `others`. All at once, since most
    are wanted, one by one."""

    draft: Draft
    length: int
    others: int
    prices_ms: list[float]


@dataclass(slots=True)
class Batch:
    """A pass over `rows` rows so far. Every request in it waits for all drafts in it.

    budget_ms: the time that all drafts together may take: rows, draft model and Python.
    spent_ms: how much of that is spent or reserved.
    most_rows: the most rows that the pass may have.
    python_row_ms: Python's time for each drafted row.
    last_rows: the size of the last pass, behind which the next one is priced (see `PassSize`).
    """

    cost: CostModel
    rows: int
    budget_ms: float = math.inf
    most_rows: float = math.inf
    python_row_ms: float = 0.0
    last_rows: int = 0
    spent_ms: float = 0.0
    _priced: _Priced | None = field(init=False, default=None)

    def row_ms(self, draft: Draft) -> float:
        """The time that one more row of a draft adds."""
        length, known = len(draft.proposals), self._priced
        others = self.rows - length
        if known is None or known.draft is not draft or known.others != others or known.length > length:
            number = draft.limit - length + 1
            prices_ms = self.cost.rows_ms(self.rows, 1 + length, draft.context, number, self.last_rows)
            known = self._priced = _Priced(draft, length, others, prices_ms)
        return known.prices_ms[length - known.length] + self.python_row_ms

    @property
    def least_row_ms(self) -> float:
        """The time that a row adds at the least, alone or with those that follow (see `CostModel.least_row_ms`)."""
        return self.cost.least_row_ms(self.rows, self.last_rows) + self.python_row_ms

    @property
    def remaining_ms(self) -> float:
        return self.budget_ms - self.spent_ms

    def can_afford(self, price_ms: float) -> bool:
        return not price_ms or price_ms <= self.remaining_ms

    def can_pay(self, price: Usual, plain_ms: float) -> bool:
        """Whether there is time in the pass for something that has a price, which is paid at once."""
        if not self.can_afford(price.value):
            if price.value > plain_ms:  # perhaps only because the machine was busy
                price.doubt()
            return False
        self.spent_ms += price.value
        return True

    def charge_doubted(self, price: Usual, number: int, took_ms: float) -> None:
        """Charge a number of things as they were if they had seemed too dear to be paid."""
        if price.is_doubted:
            self.spent_ms += max(0.0, took_ms - number * price.value)

    def can_take(self, draft: Draft, price_ms: float) -> bool:
        """Whether there is room for one more row of a draft, at this price."""
        is_full = len(draft.proposals) >= draft.limit or self.rows >= self.most_rows
        return not is_full and self.can_afford(price_ms)

    def take(self, draft: Draft, proposal: Proposal, probability: float, rate: float) -> bool:
        """Add a row for a proposal, unless there is no room for it, or neither it nor what may follow it would pay at
        `rate` tokens per millisecond, since nothing behind it is likelier. One that was drawn need not pay."""
        price_ms = self.row_ms(draft)
        if probability < rate * price_ms and proposal.drawn_from is None and probability < rate * self.least_row_ms:
            return False
        if not self.can_take(draft, price_ms):
            return False
        draft.take(proposal, probability, price_ms)
        self.rows += 1
        self.spent_ms += price_ms
        return True

    def cut(self, draft: Draft, length: int) -> None:
        """Shorten a draft, as far as it may be. This saves what the last rows of the pass take, as the rows of other
        drafts move up."""
        number = len(draft.proposals) - max(length, draft.num_fixed)
        if number > 0:
            draft.cut(len(draft.proposals) - number)
            self.rows -= number
            self.spent_ms -= self._last_rows_ms(draft, self.rows, 1 + len(draft.proposals), number)

    def cut_to_best(self, draft: Draft, rate: float) -> None:
        """Shorten a draft to its best prefix."""
        self.cut(draft, best_prefix(draft.probabilities, draft.prices_ms, rate)[0])

    def draft_ms(self, draft: Draft) -> float:
        """The time that the pass would save without a draft, as the rows of other drafts would move up."""
        number = len(draft.proposals)
        return self._last_rows_ms(draft, self.rows - number, 1, number)

    def reserve(self, draft: Draft, ms: float) -> None:
        """Set time of the draft model aside for a draft."""
        draft.reserved_ms += ms
        self.spent_ms += ms

    def release(self, draft: Draft) -> None:
        """Give back what is reserved for a draft."""
        self.spent_ms -= draft.reserved_ms
        draft.reserved_ms = 0.0

    def charge(self, draft: Draft, ms: float) -> None:
        """Count time that the draft model spent on a draft."""
        draft.draft_ms += ms
        self.spent_ms += ms

    def _last_rows_ms(self, draft: Draft, others: int, rows: int, number: int) -> float:
        """The time of the last rows of a draft, so many, with `others` rows in the pass before them, `rows` of them the
        draft's."""
        prices_ms = self.cost.rows_ms(others, rows, draft.context, number, self.last_rows)
        return sum(prices_ms) + number * self.python_row_ms
