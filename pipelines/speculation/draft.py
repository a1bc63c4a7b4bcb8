"""Draft: one request's part in the batch pass, and the draft that it brings; Batch: what all of them feed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..engine.request import Request
from .cost import CostModel
from .drafters.base import Proposal


def best_prefix(probabilities: Iterable[float], prices_ms: Iterable[float], rate: float) -> tuple[int, float]:
    """How many of the first tokens of a draft bring most at a rate of so many tokens for a millisecond, and how much,
    in tokens. Drafts are judged as wholes: the price of several rows can fall on one of them."""
    worth = best_worth = 0.0
    best_length = 0
    for length, (probability, price_ms) in enumerate(zip(probabilities, prices_ms, strict=True), 1):
        worth += probability - rate * price_ms
        if worth >= best_worth:
            best_worth, best_length = worth, length
    return best_length, best_worth


@dataclass(slots=True)
class Draft:
    """A request whose next token is due, behind `context` cached ones.

    limit: tokens of the draft, at most.
    offers: what the texts propose behind its tokens, as far as that was looked at, whether or not it is drafted.
    probabilities: for each token of the draft, the probability that the draft stands up to and with it.
    prices_ms: for each token of the draft, the time that its row adds to the pass.
    draft_ms: time that a draft model is taken to have spent on it.
    num_read: tokens of the draft that the draft model is to read.
    reserved_ms: time that the draft model is going to spend on it, which nobody else may use up.
    """

    request: Request
    context: int
    limit: int
    proposals: list[Proposal] = field(default_factory=list)
    offers: list[Proposal] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    prices_ms: list[float] = field(default_factory=list)
    draft_ms: float = 0.0
    num_read: int = 0
    reserved_ms: float = 0.0

    @property
    def rows(self) -> int:
        return 1 + len(self.proposals)

    @property
    def tokens(self) -> list[int]:
        return [proposal.token for proposal in self.proposals]

    @property
    def sources(self) -> list[str]:
        return [proposal.source for proposal in self.proposals]

    @property
    def probability(self) -> float:
        """Probability that the whole draft stands."""
        return self.probabilities[-1] if self.probabilities else 1.0

    @property
    def is_full(self) -> bool:
        return len(self.proposals) >= self.limit

    def worth(self, rate: float) -> float:
        """What the draft is expected to bring beyond its time, in tokens, at a rate of tokens for a millisecond."""
        return sum(self.probabilities) - rate * (sum(self.prices_ms) + self.draft_ms)

    def take(self, proposal: Proposal, probability: float, price_ms: float = 0.0) -> None:
        self.proposals.append(proposal)
        self.probabilities.append(probability)
        self.prices_ms.append(price_ms)

    def cut(self, length: int) -> None:
        del self.proposals[length:], self.probabilities[length:], self.prices_ms[length:]


@dataclass(slots=True)
class Batch:
    """The batch pass of the target, over `rows` so far, and what drafting for it takes.

    budget_ms: time that all drafts together may take, rows, draft model and Python, since every answer of the pass waits
        for all of them; spent_ms: what they take so far, or is reserved for them.
    most_rows: rows of the pass, at most.
    python_row_ms: Python's time for a row of a draft.
    """

    cost: CostModel
    rows: int
    budget_ms: float = math.inf
    most_rows: float = math.inf
    python_row_ms: float = 0.0
    spent_ms: float = 0.0

    def row_ms(self, draft: Draft) -> float:
        """The time that one more row of a draft adds."""
        return self.cost.row_ms(self.rows, draft.rows, draft.context) + self.python_row_ms

    @property
    def least_row_ms(self) -> float:
        """What one more row costs where it costs least."""
        return self.cost.least_row_ms + self.python_row_ms

    @property
    def remaining_ms(self) -> float:
        """What the drafts may take besides."""
        return self.budget_ms - self.spent_ms

    def can_afford(self, price_ms: float) -> bool:
        """Whether the drafts may take so much time more."""
        return not price_ms or price_ms <= self.remaining_ms

    def can_take(self, draft: Draft, price_ms: float) -> bool:
        """Whether there is room for one more row of a draft, at this price."""
        return not draft.is_full and self.rows < self.most_rows and self.can_afford(price_ms)

    def take(self, draft: Draft, proposal: Proposal, probability: float, price_ms: float) -> None:
        """Add a row, at the price that `row_ms` tells."""
        draft.take(proposal, probability, price_ms)
        self.rows += 1
        self.spent_ms += price_ms

    def cut(self, draft: Draft, length: int) -> None:
        """Take rows out of the pass. What they took is what the last ones do: those of others move up."""
        while len(draft.proposals) > length:
            draft.cut(len(draft.proposals) - 1)
            self.rows -= 1
            self.spent_ms -= self.row_ms(draft)

    def draft_ms(self, draft: Draft) -> float:
        """What the pass would take less without the draft of a draft. Rows of others would move up."""
        sizes = ((self.rows - i, draft.rows - i) for i in range(1, draft.rows))
        return sum(self.cost.row_ms(*size, draft.context) + self.python_row_ms for size in sizes)

    def cut_to_best(self, draft: Draft, rate: float) -> None:
        """Keep of a draft as much as brings most, at a `rate` of tokens for a millisecond."""
        self.cut(draft, best_prefix(draft.probabilities, draft.prices_ms, rate)[0])

    def reserve(self, draft: Draft, ms: float) -> None:
        """Keep time of the draft model for a draft."""
        draft.reserved_ms += ms
        self.spent_ms += ms

    def release(self, draft: Draft) -> None:
        """Give back what was reserved for a draft."""
        self.spent_ms -= draft.reserved_ms
        draft.reserved_ms = 0.0

    def charge(self, draft: Draft, ms: float) -> None:
        """Count time of the draft model that was spent on a draft."""
        draft.draft_ms += ms
        self.spent_ms += ms
