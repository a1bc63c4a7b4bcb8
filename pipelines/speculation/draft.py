"""Draft: the tokens proposed for one request in a pass. Batch: all drafts of a pass, and the time they may take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from ..engine.request import Request
from .acceptance import Conditions
from .cost import CostModel
from .drafters.base import Proposal
from .overhead import Usual

LONGEST = 32  # tokens of a draft
SURE = 0.5  # if the first token of a draft is at least this probable, a model has little to add to it
PER_DRAFT = 1 / 2  # share of the budget that the drafts of a pass take, unless only longer ones pay

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


def best_prefix_sparing(
    probabilities: Sequence[float], prices_ms: Sequence[float], rate: float, least_rate: float, most_ms: float
) -> int:
    """The length of the best prefix that takes at most `most_ms`, at `rate` or, if none pays there, at `least_rate`; if
    none pays at either, of the best one of any length."""
    within = sum(price_ms <= most_ms for price_ms in accumulate(prices_ms))
    for each in (rate, least_rate):
        length, _ = best_prefix(probabilities[:within], prices_ms[:within], each)
        if length:
            return length
    return best_prefix(probabilities, prices_ms, rate)[0]


@dataclass(slots=True)
class Draft:
    """What is drafted for a request in a pass, after its last token, which follows `context` cached tokens.

    limit: the most tokens that it may have.
    conditions, kind: the conditions under which its tokens are accepted, alone and together with the mode.
    is_bounded: whether a budget bounds the delay of its request.
    offers: the drafts that were considered, made or not, each from its first token on. The first of them is what the
        text drafters offered.
    probabilities: for each proposal, that the target accepts the draft up to and including it.
    prices_ms: for each proposal, the time that its row adds to the pass.
    draft_ms: the draft model's time that was charged to it.
    num_scored: how many of its tokens the draft model is to score.
    reserved_ms: the draft model's time that is set aside for it.
    may_take_all: whether the draft model may take more than PER_DRAFT of the budget, as only so long a draft pays.
    credit: what asking its draft model now is worth in other passes, in tokens.
    num_fixed: how many of its first proposals may not be cut: those up to the last one that was drawn (see `Proposal`).
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
    may_take_all: bool = False
    credit: float = 0.0
    num_fixed: int = 0
    conditions: Conditions = field(init=False)
    kind: Kind = field(init=False)
    is_bounded: bool = field(init=False)

    def __post_init__(self) -> None:
        config = self.request.config
        self.conditions = Conditions.of(config)
        self.kind, self.is_bounded = (config.mode, self.conditions), config.num_assistant_tokens is None

    @property
    def has_form(self) -> bool:
        """Whether its request has structured output."""
        return self.request.constraint is not None

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
        """The probability that the target accepts all of it."""
        return self.probabilities[-1] if self.probabilities else 1.0

    @property
    def is_sure(self) -> bool:
        """Whether its first token will probably be accepted."""
        return bool(self.probabilities) and self.probabilities[0] >= SURE

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


class _Priced(NamedTuple):
    """The prices of a draft's next rows from its `length` on, in a pass with `others` further rows. They are computed
    together, since most of them are needed one after the other."""

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
    last_rows: the size of the last pass, on which the prices in the next one depend (see `PassSize`).
    bare_rate: the rate of the pass without planned drafts, in tokens per millisecond.
    """

    cost: CostModel
    rows: int
    budget_ms: float = math.inf
    most_rows: float = math.inf
    python_row_ms: float = 0.0
    last_rows: int = 0
    bare_rate: float = math.inf
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
        """The least time that a row adds, alone or averaged with the rows after it (see `CostModel.least_row_ms`)."""
        return self.cost.least_row_ms(self.rows, self.last_rows) + self.python_row_ms

    @property
    def remaining_ms(self) -> float:
        return self.budget_ms - self.spent_ms

    @property
    def sparing_ms(self) -> float:
        """What remains of the share PER_DRAFT of the budget, which is kept to so that one rejected draft does not end
        all drafting."""
        return PER_DRAFT * self.budget_ms - self.spent_ms

    def can_afford(self, price_ms: float) -> bool:
        return not price_ms or price_ms <= self.remaining_ms

    def pays(self, price_ms: float) -> bool:
        """Whether there is time in the pass for something that has a price, which is paid at once."""
        if not self.can_afford(price_ms):
            return False
        self.spent_ms += price_ms
        return True

    def can_pay(self, price: Usual, plain_ms: float) -> bool:
        """As `pays`; a price that is longer than a plain pass is doubted where it cannot be paid."""
        if self.pays(price.value):
            return True
        if price.value > plain_ms:  # perhaps only because the machine was busy
            price.doubt()
        return False

    def charge_doubted(self, price: Usual, number: int, took_ms: float) -> None:
        """Charge the time by which `number` operations took longer than at this price, if the price was doubted."""
        if price.is_doubted:
            self.spent_ms += max(0.0, took_ms - number * price.value)

    def can_take(self, draft: Draft, price_ms: float) -> bool:
        """Whether there is room for one more row of a draft, at this price."""
        is_full = len(draft.proposals) >= draft.limit or self.rows >= self.most_rows
        return not is_full and self.can_afford(price_ms)

    def take(self, draft: Draft, proposal: Proposal, probability: float, rate: float) -> bool:
        """Add a row for a proposal if there is room for it and it may pay at `rate` tokens per millisecond, by itself
        or with what follows it, none of which is likelier. A proposal that was drawn need not pay."""
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
        """Shorten a draft as far as that is allowed. This saves the time of the last rows of the pass, since the rows
        of other drafts move up."""
        number = len(draft.proposals) - max(length, draft.num_fixed)
        if number > 0:
            draft.cut(len(draft.proposals) - number)
            self.rows -= number
            self.spent_ms -= self._last_rows_ms(draft, self.rows, 1 + len(draft.proposals), number)

    def cut_to_best(self, draft: Draft, rate: float) -> None:
        """Shorten a draft to its best prefix."""
        self.cut(draft, best_prefix(draft.probabilities, draft.prices_ms, rate)[0])

    def cut_to_best_sparing(self, draft: Draft, rate: float) -> None:
        """Shorten a draft to its best prefix within `sparing_ms`, or to the best of all if none within it pays."""
        most_ms = self.sparing_ms + sum(draft.prices_ms)
        self.cut(draft, best_prefix_sparing(draft.probabilities, draft.prices_ms, rate, self.bare_rate, most_ms))

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
        """The time of the last `number` rows of a draft, with `others` rows before them in the pass, `rows` of which
        are the draft's."""
        prices_ms = self.cost.rows_ms(others, rows, draft.context, number, self.last_rows)
        return sum(prices_ms) + number * self.python_row_ms
