"""Draft: the tokens proposed behind one request in the next pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..engine.request import Request
from .acceptance import Conditions
from .drafters.base import Proposal

Kind = tuple[str, Conditions]  # mode and conditions: answers of one kind tell something about each other


def best_prefix(probabilities: Iterable[float], prices_ms: Iterable[float], rate: float) -> tuple[int, float]:
    """The length of the prefix of a draft with the highest expected gain, and that gain in tokens.

    probabilities: for each token, that the target accepts the draft up to and including it.
    prices_ms: for each token, the time that it adds to the pass.
    rate: what a millisecond is worth, in tokens.

    Prefixes are compared as wholes, since one row can carry the price of several.
    """
    gain = best_gain = 0.0
    best_length = 0
    for length, (probability, price_ms) in enumerate(zip(probabilities, prices_ms, strict=True), 1):
        gain += probability - rate * price_ms
        if gain >= best_gain:
            best_gain, best_length = gain, length
    return best_length, best_gain


@dataclass(slots=True)
class Draft:
    """What a request brings to a pass behind its last token, which has `context` cached tokens before it.

    limit: the most tokens that it may have.
    conditions, kind: those under which its tokens are accepted, and with the mode.
    is_bounded: whether a budget bounds the delay of its request.
    offers: drafts that were considered, whether or not they are made, each from its first token on.
    probabilities: for each proposal, that the target accepts the draft up to and including it.
    prices_ms: for each proposal, the time that its row adds to the pass.
    draft_ms: the draft model's time that was charged to it.
    num_scored: how many of its tokens the draft model is to score.
    reserved_ms: the draft model's time that is set aside for it.
    num_fixed: how many of its first proposals may not be cut, since they are up to one that was drawn (see `Proposal`).
    """

    request: Request
    context: int
    limit: int
    proposals: list[Proposal] = field(default_factory=list)
    offers: list[list[Proposal]] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    prices_ms: list[float] = field(default_factory=list)
    draft_ms: float = 0.0
    num_scored: int = 0
    reserved_ms: float = 0.0
    num_fixed: int = 0
    conditions: Conditions = field(init=False)
    kind: Kind = field(init=False)
    is_bounded: bool = field(init=False)

    def __post_init__(self) -> None:
        config = self.request.config
        self.conditions = Conditions.of(config)
        self.kind, self.is_bounded = (config.mode, self.conditions), config.num_assistant_tokens is None

    @property
    def rows(self) -> int:
        """Rows of the request in the pass."""
        return 1 + len(self.proposals)

    @property
    def tokens(self) -> list[int]:
        return [proposal.token for proposal in self.proposals]

    @property
    def sources(self) -> list[str]:
        return [proposal.source for proposal in self.proposals]

    @property
    def probability(self) -> float:
        """That the target accepts all of it."""
        return self.probabilities[-1] if self.probabilities else 1.0

    @property
    def num_further(self) -> int:
        """How many tokens the text drafters offered beyond the first."""
        return max(0, len(self.offers[0]) - 1)

    def gain(self, rate: float) -> float:
        """The expected number of accepted tokens, less what its time is worth at `rate` tokens per millisecond."""
        return sum(self.probabilities) - rate * (sum(self.prices_ms) + self.draft_ms)

    def take(self, proposal: Proposal, probability: float, price_ms: float = 0.0) -> None:
        """Append a proposal."""
        self.proposals.append(proposal)
        if proposal.drawn_from is not None:
            self.num_fixed = len(self.proposals)
        self.probabilities.append(probability)
        self.prices_ms.append(price_ms)

    def cut(self, length: int) -> None:
        """Keep the first `length` proposals."""
        del self.proposals[length:], self.probabilities[length:], self.prices_ms[length:]
