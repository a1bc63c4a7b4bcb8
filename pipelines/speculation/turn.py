"""Turn: one request's part in the coming pass, and the draft that it brings; Pass: what all of them feed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..engine.request import Request
from .cost import CostModel
from .drafters.base import Proposal


def best_prefix(survivals: Iterable[float], prices_ms: Iterable[float], rate: float) -> tuple[int, float]:
    """How many of the first tokens of a draft bring most at a rate of so many tokens for a millisecond, and how much,
    in tokens. Drafts are judged as wholes: the price of several rows can fall on one of them."""
    worth = best_worth = 0.0
    best_length = 0
    for length, (survival, price_ms) in enumerate(zip(survivals, prices_ms, strict=True), 1):
        worth += survival - rate * price_ms
        if worth >= best_worth:
            best_worth, best_length = worth, length
    return best_length, best_worth


@dataclass(slots=True)
class Turn:
    """A request whose next token is due, behind `context` cached ones.

    limit: tokens of the draft, at most.
    offers: what the texts propose behind its tokens, as far as that was looked at, whether or not it is drafted.
    survivals: for each token of the draft, the probability that the draft stands up to and with it.
    prices_ms: for each token of the draft, the time that its row adds to the pass.
    draft_ms: time that a draft model is taken to have spent on it.
    num_read: tokens of the draft that the draft model is to read.
    reserved_ms: time that the draft model is going to spend on it, which nobody else may use up.
    """

    request: Request
    context: int
    limit: int
    draft: list[Proposal] = field(default_factory=list)
    offers: list[Proposal] = field(default_factory=list)
    survivals: list[float] = field(default_factory=list)
    prices_ms: list[float] = field(default_factory=list)
    draft_ms: float = 0.0
    num_read: int = 0
    reserved_ms: float = 0.0

    @property
    def rows(self) -> int:
        return 1 + len(self.draft)

    @property
    def tokens(self) -> list[int]:
        return [proposal.token for proposal in self.draft]

    @property
    def sources(self) -> list[str]:
        return [proposal.source for proposal in self.draft]

    @property
    def survival(self) -> float:
        """Probability that the whole draft stands."""
        return self.survivals[-1] if self.survivals else 1.0

    @property
    def is_full(self) -> bool:
        return len(self.draft) >= self.limit

    def worth(self, rate: float) -> float:
        """What the draft is expected to bring beyond its time, in tokens, at a rate of tokens for a millisecond."""
        return sum(self.survivals) - rate * (sum(self.prices_ms) + self.draft_ms)

    def take(self, proposal: Proposal, survival: float, price_ms: float = 0.0) -> None:
        self.draft.append(proposal)
        self.survivals.append(survival)
        self.prices_ms.append(price_ms)

    def cut(self, length: int) -> None:
        del self.draft[length:], self.survivals[length:], self.prices_ms[length:]


@dataclass(slots=True)
class Pass:
    """The coming pass of the target, over `rows` so far, and what drafting for it takes.

    spare_ms: time that all drafts together may take, rows, draft model and Python, since every answer of the pass waits
        for all of them; spent_ms: what they take so far, or is reserved for them.
    most_rows: rows of the pass, at most.
    python_row_ms: Python's time for a row of a draft.
    """

    cost: CostModel
    rows: int
    spare_ms: float = math.inf
    most_rows: float = math.inf
    python_row_ms: float = 0.0
    spent_ms: float = 0.0

    def row_ms(self, turn: Turn) -> float:
        """The time that one more row of a turn adds."""
        return self.cost.row_ms(self.rows, turn.rows, turn.context) + self.python_row_ms

    @property
    def least_row_ms(self) -> float:
        """What one more row costs where it costs least."""
        return self.cost.least_row_ms + self.python_row_ms

    @property
    def left_ms(self) -> float:
        """What the drafts may take besides."""
        return self.spare_ms - self.spent_ms

    def can_afford(self, price_ms: float) -> bool:
        """Whether the drafts may take so much time more."""
        return not price_ms or price_ms <= self.left_ms

    def can_take(self, turn: Turn, price_ms: float) -> bool:
        """Whether there is room for one more row of a turn, at this price."""
        return not turn.is_full and self.rows < self.most_rows and self.can_afford(price_ms)

    def take(self, turn: Turn, proposal: Proposal, survival: float, price_ms: float) -> None:
        """Add a row, at the price that `row_ms` tells."""
        turn.take(proposal, survival, price_ms)
        self.rows += 1
        self.spent_ms += price_ms

    def cut(self, turn: Turn, length: int) -> None:
        """Take rows out of the pass. What they took is what the last ones do: those of others move up."""
        while len(turn.draft) > length:
            turn.cut(len(turn.draft) - 1)
            self.rows -= 1
            self.spent_ms -= self.row_ms(turn)

    def draft_ms(self, turn: Turn) -> float:
        """What the pass would take less without the draft of a turn. Rows of others would move up."""
        sizes = ((self.rows - i, turn.rows - i) for i in range(1, turn.rows))
        return sum(self.cost.row_ms(*size, turn.context) + self.python_row_ms for size in sizes)

    def cut_to_best(self, turn: Turn, rate: float) -> None:
        """Keep of a draft as much as brings most, at a `rate` of tokens for a millisecond."""
        self.cut(turn, best_prefix(turn.survivals, turn.prices_ms, rate)[0])

    def reserve(self, turn: Turn, ms: float) -> None:
        """Keep time of the draft model for a turn."""
        turn.reserved_ms += ms
        self.spent_ms += ms

    def release(self, turn: Turn) -> None:
        """Give back what was reserved for a turn."""
        self.spent_ms -= turn.reserved_ms
        turn.reserved_ms = 0.0

    def charge(self, turn: Turn, ms: float) -> None:
        """Count time of the draft model that was spent on a turn."""
        turn.draft_ms += ms
        self.spent_ms += ms
