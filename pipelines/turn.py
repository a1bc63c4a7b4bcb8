"""Turn: one sequence's part in the coming pass, and the draft that it brings; Pass: what all of them feed."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from .cost import CostModel
from .drafters.base import Proposal
from .sequence import Sequence


@dataclass(slots=True)
class Turn:
    """A sequence whose next token is due, behind `context` cached ones.

    limit: tokens of the draft, at most.
    survivals: for each token of the draft, the probability that the draft stands up to and with it.
    prices_ms: for each token of the draft, the time that its row adds to the pass.
    draft_ms: time that a draft model is taken to have spent on it.
    num_read: tokens of the draft that the draft model is to read.
    stake_ms: time that the rows of the draft may take at most, and spare_ms: that everything for the draft may.
    """

    sequence: Sequence
    context: int
    limit: int
    draft: list[Proposal] = field(default_factory=list)
    survivals: list[float] = field(default_factory=list)
    prices_ms: list[float] = field(default_factory=list)
    draft_ms: float = 0.0
    num_read: int = 0
    stake_ms: float = math.inf
    spare_ms: float = math.inf

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

    @property
    def spent_ms(self) -> float:
        """What the draft takes, lost if none of it stands."""
        return sum(self.prices_ms) + self.draft_ms

    def can_afford(self, price_ms: float) -> bool:
        """Whether the draft may take so much time more."""
        return not price_ms or self.spent_ms + price_ms <= self.spare_ms

    def can_stake(self, price_ms: float) -> bool:
        """Whether one more row at this price may be lost."""
        return not price_ms or (sum(self.prices_ms) + price_ms <= self.stake_ms and self.can_afford(price_ms))

    def take(self, proposal: Proposal, survival: float, price_ms: float = 0.0) -> None:
        self.draft.append(proposal)
        self.survivals.append(survival)
        self.prices_ms.append(price_ms)

    def cut(self, length: int) -> None:
        del self.draft[length:], self.survivals[length:], self.prices_ms[length:]


@dataclass(slots=True)
class Pass:
    """The coming pass of the target, over `rows` so far."""

    cost: CostModel
    rows: int

    def row_ms(self, turn: Turn) -> float:
        """The time that one more row of a turn adds."""
        return self.cost.row_ms(self.rows, turn.rows, turn.context)

    def take(self, turn: Turn, proposal: Proposal, survival: float, price_ms: float) -> None:
        turn.take(proposal, survival, price_ms)
        self.rows += 1

    def cut(self, turn: Turn, length: int) -> None:
        self.rows -= turn.rows
        turn.cut(length)
        self.rows += turn.rows

    def cut_to_best(self, turn: Turn, rate: float) -> None:
        """Keep of a draft as much as brings most, at a `rate` of tokens for a millisecond. Single rows do not tell, as
        the price of the next few can fall on one of them."""
        worth = best_worth = 0.0
        best_length = 0
        for length, (survival, price_ms) in enumerate(zip(turn.survivals, turn.prices_ms, strict=True), 1):
            worth += survival - rate * price_ms
            if worth >= best_worth:
                best_worth, best_length = worth, length
        self.cut(turn, best_length)

    def balance(self, turns: SequenceOf[Turn]) -> None:
        """Price all drafts anew where some were cut under the rows of others, and shorten what is too dear by now."""
        dear = list(turns) if len(turns) > 1 else []
        while dear:
            self.rows -= sum(len(turn.draft) for turn in turns)
            for turn in turns:
                turn.prices_ms.clear()
                for window in range(1, turn.rows):
                    turn.prices_ms.append(self.cost.row_ms(self.rows, window, turn.context))
                    self.rows += 1
            dear = [turn for turn in turns if turn.draft and turn.spent_ms > turn.spare_ms]
            for turn in dear:
                self.cut(turn, len(turn.draft) - 1)
