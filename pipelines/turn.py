"""Turn: one sequence's part in the coming pass, and the draft that it brings."""

from __future__ import annotations

from dataclasses import dataclass, field

from .drafters.base import Proposal
from .sequence import Sequence


@dataclass(slots=True)
class Turn:
    """A sequence whose next token is due, behind `context` cached ones.

    limit: tokens of the draft, at most.
    survivals: for each token of the draft, the probability that the draft stands up to and with it.
    draft_ms: time that a draft model is taken to have spent on it.
    """

    sequence: Sequence
    context: int
    limit: int
    draft: list[Proposal] = field(default_factory=list)
    survivals: list[float] = field(default_factory=list)
    draft_ms: float = 0.0

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

    def take(self, proposal: Proposal, survival: float) -> None:
        self.draft.append(proposal)
        self.survivals.append(survival)

    def cut(self, length: int) -> None:
        del self.draft[length:], self.survivals[length:]
