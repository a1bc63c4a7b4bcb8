"""Planner: who drafts for which request, and how many tokens."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from ..engine.request import Request
from .acceptance import AcceptanceModel
from .consultant import Consultant
from .cost import CostModel
from .draft import Batch, Draft, best_prefix
from .drafters.base import Proposal
from .drafting import Drafting
from .loss_budget import LossBudget
from .overhead import Overhead

LONGEST = 32  # tokens of a draft
REMEMBER = 0.9  # weight of the passes so far in the rate of late
LONGEST_WRITTEN = 8  # tokens that the draft model is expected to write at a time, at most
LEARN_AFTER_MS = 10.0  # of passes: learning what one costs takes a tenth of a millisecond, much beside a small model
PER_DRAFT = 1 / 2  # share of what may still be lost that the rows of a draft take, unless only a longer one pays


@dataclass(frozen=True, slots=True)
class _Step:
    """One more token of a draft: the odds that it is reached and stands, and its price."""

    draft: Draft
    probability: float
    price_ms: float


@dataclass(slots=True)
class _Pace:
    """Of late, all requests of a pass together."""

    tokens: float = 0.0
    time_ms: float = 0.0

    def add(self, tokens: int, time_ms: float) -> None:
        self.tokens = REMEMBER * self.tokens + tokens
        self.time_ms = REMEMBER * self.time_ms + time_ms

    @property
    def rate(self) -> float:
        """Tokens per millisecond; 0 where nothing is known."""
        return self.tokens / self.time_ms if self.time_ms else 0.0


@dataclass(frozen=True, slots=True)
class _Bare:
    """The batch pass without what is planned: its requests, the tokens to be expected of it, and its time."""

    drafts: Sequence[Draft]
    tokens: float
    time_ms: float

    @property
    def rate(self) -> float:
        return self.tokens / self.time_ms


class Planner:
    """Drafts as a request's mode says: each mode is a chain of drafters, one going on where the other ends.

    Where `num_assistant_tokens` is given, so many tokens are drafted. Otherwise as many as pay. A draft of estimates
    a1, a2, ... brings a1 + a1 a2 + ... tokens; more are worth drafting while the probabilities that they stand exceed
    the time that they add times `rate`, the tokens that a millisecond is worth. By the renewal-reward theorem that is
    the rate of the best policy in the long run; as texts change between copying and writing, it is taken midway
    between the rate of late, in the same modes, and the most that this pass can be expected to give. All requests
    share one pass, so the tokens that are likeliest to stand come first, whoever's they are, and a full pass leaves no
    room for doubtful ones.

    The draft model is asked where its time, too, is expected to pay: to write behind what the texts offer, and in mode
    "auto" also to write in its place, or to read it: one pass tells for each token whether the model would write it
    too, and what instead (a cascade, as in Chen et al., arXiv 2312.11462).

    An `LossBudget` of each answer bounds its delay, whatever fails, its own drafts or those that others bring into its
    passes, also where it has none itself: what drafts may take together is what the poorest of the pass can spare.
    Most of that is kept for later, so that one bad guess does not end all drafting: rows take the share PER_DRAFT, unless
    nothing so short is expected to pay. What stands is credited to its own answer, and the drafts of answers that go
    well soon grow as long as they pay. Times are those that `cost` predicts, and what Python usually takes, so noise
    does not enter.

    Who fixes the length of drafts gives the bound up for itself. Its rows and the time of its drafters are part of
    what a pass takes, like the rows of prompts: what others lose by them is owed to that request alone, so it is not
    charged to drafts that are planned, and nothing that these gain makes up for it.

    Asking takes Python's time, too, which matters beside small models: see `LossBudget.is_due`. It is left out of budget
    where an answer has a form: there most of it goes into what the form allows, which is due with and without drafts.
    """

    def __init__(
        self,
        drafting: Drafting,
        acceptance: AcceptanceModel,
        cost: CostModel | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.cost = cost  # without it, nothing is drafted where nobody says how many tokens
        self.overhead = Overhead()
        self._acceptance = acceptance
        self._drafting = drafting
        self._clock = clock
        self._budgets: dict[Request, LossBudget] = {}
        self._consultant = Consultant(drafting, acceptance)
        self._paces: dict[frozenset[str], _Pace] = {}  # by the modes of a pass: each has a rate of its own
        self._delay_ms = 0.0  # that the drafts of the batch pass mean for everybody in it
        self._unlearnt_ms = 0.0  # in passes since the cost of one was learnt
        self._drafting_ms = self._observing_ms = 0.0  # what `draft` took for this pass, and `observe` for the last
        self.rate = 0.0  # what a millisecond is worth in the batch pass, in tokens

    @property
    def model_s(self) -> float:
        """Seconds that the draft model has taken, all in all."""
        return self._drafting.model_s

    def draft(self, drafts: Sequence[Draft], other_rows: int = 0, most_rows: float = math.inf) -> None:
        """Fill the draft of each draft. `other_rows` of the same pass are prompts that are being read.

        Drafts are cut so that the pass has `most_rows` at most. Those of a fixed length come first, in their order;
        the last token of each answer has its row in any case.
        """
        began = self._clock()
        self._delay_ms = 0.0
        rows = other_rows + len(drafts)
        planned = []
        for draft in drafts:
            length = draft.request.config.num_assistant_tokens
            if length is None:
                if self._drafting.chain(draft).drafters:
                    planned.append(draft)
            else:
                length = int(max(0, min(draft.limit, length, most_rows - rows)))
                for proposal in islice(self._drafting.chained(draft), length):
                    draft.take(proposal, draft.probability * self._acceptance.probability(proposal.features))
                rows += len(draft.proposals)
        if planned and self.cost is not None:
            self._plan(self.cost, drafts, planned, rows, most_rows)
        self._drafting_ms = 1e3 * (self._clock() - began)

    def _plan(
        self, cost: CostModel, drafts: Sequence[Draft], planned: Sequence[Draft], rows: int, most_rows: float
    ) -> None:
        bare_ms, budget_ms = self._plain_ms(cost, drafts), math.inf
        for draft in drafts:
            if _is_bounded(draft):
                budget_ms = min(budget_ms, self._budget(cost, draft, drafts, bare_ms).remaining_ms)
        overhead = self._overhead_of(drafts)
        batch = Batch(cost, rows, budget_ms, most_rows, overhead.row.value)
        asked = [draft for draft in planned if self._can_ask(batch, draft, bare_ms, overhead)]
        if not asked:
            return
        began, model_s = self._clock(), self._drafting.model_s
        tokens = len(drafts) + sum(sum(draft.probabilities) for draft in drafts)
        bare = _Bare(drafts, tokens, self._bare_ms(cost, drafts))
        self._draft_from_text(batch, asked, bare)
        if self._drafting.model is not None:
            self._consultant.consult(batch, self.rate, asked)
        self._delay_ms = batch.spent_ms
        for draft in asked:
            budget = self._budgets[draft.request]
            budget.attempted(draft.worth(self.rate) / self.rate, overhead.asking.value, bare_ms)
        took_ms = 1e3 * (self._clock() - began - (self._drafting.model_s - model_s))
        if overhead.asking.is_doubted:
            self._delay_ms += max(0.0, took_ms - len(asked) * overhead.asking.value)
        if overhead is self.overhead:
            overhead.observe_asking(len(asked), took_ms)

    def observe(
        self,
        drafts: Sequence[Draft],
        kept: Sequence[Sequence[int]],
        target_ms: float | None,
        beside_ms: float | None = None,
    ) -> None:
        """Learn from a pass: what each draft's request kept, and, where nothing else was in it, the target's time, and
        what the pass took `beside_ms` the target, drafting included."""
        began = self._clock()
        for draft, tokens in zip(drafts, kept, strict=True):
            self._learn(draft, tokens)
        if self.cost is None or not drafts:
            return
        if target_ms is not None:
            self._unlearnt_ms += target_ms
            if self._unlearnt_ms >= LEARN_AFTER_MS:
                self._unlearnt_ms = 0.0
                self.cost.observe([(draft.rows, draft.context) for draft in drafts], target_ms)
        if beside_ms is not None and self._overhead_of(drafts) is self.overhead:
            num_drafted = sum(len(draft.proposals) for draft in drafts)
            self.overhead.observe_rest(len(drafts), num_drafted, beside_ms - self._drafting_ms + self._observing_ms)
        plain_ms = self._plain_ms(self.cost, drafts)
        self._pace(drafts).add(sum(map(len, kept)), self._bare_ms(self.cost, drafts) + self._delay_ms)
        for draft, tokens in zip(drafts, kept, strict=True):
            if _is_bounded(draft):
                self._budget(self.cost, draft, drafts, plain_ms).passed(len(tokens), plain_ms, self._delay_ms)
        self._delay_ms = 0.0
        self._observing_ms = 1e3 * (self._clock() - began)

    def release(self, request: Request) -> None:
        """Forget a finished request."""
        self._budgets.pop(request, None)
        self._consultant.release(request)
        self._drafting.release(request)

    def _can_ask(self, batch: Batch, draft: Draft, plain_ms: float, overhead: Overhead) -> bool:
        """Whether to ask the drafters of a draft now, which is paid for at once."""
        price_ms = overhead.asking.value
        if draft.limit <= 0 or not self._budgets[draft.request].is_due:
            return False
        if not batch.can_afford(price_ms):
            if price_ms > plain_ms:  # perhaps only because the machine was busy
                overhead.asking.doubt()
            return False
        batch.spent_ms += price_ms
        return True

    def _learn(self, draft: Draft, kept: Sequence[int]) -> None:
        """Learn how proposals fared against the tokens that were kept, also those that were not worth a row: else a
        kind of proposal that has once done badly would never be tried again."""
        for proposal, token in zip(draft.proposals, kept, strict=False):
            self._acceptance.observe(proposal.features, proposal.token == token)
        drafted = {id(proposal) for proposal in draft.proposals}
        for proposal, token in zip(draft.offers, kept, strict=False):
            if id(proposal) not in drafted:
                self._acceptance.observe(proposal.features, proposal.token == token)
            if proposal.token != token:
                return

    def _draft_from_text(self, batch: Batch, drafts: Sequence[Draft], bare: _Bare) -> None:
        """Take what the texts themselves offer, the surest first, as far as it pays."""
        rows, stake_ms = batch.rows, PER_DRAFT * (batch.budget_ms - batch.spent_ms)
        steps = self._take_surest(batch, drafts, bare.rate)
        late = max(self._pace(bare.drafts).rate, bare.rate)  # plain decoding is there in any case
        self.rate = math.sqrt(late * self._rate_at_best(batch, drafts, bare, steps, rows))
        probabilities, prices_ms = [step.probability for step in steps], [step.price_ms for step in steps]
        within = sum(price_ms <= stake_ms for price_ms in accumulate(prices_ms))
        length, _ = best_prefix(probabilities[:within], prices_ms[:within], self.rate)
        if not length:
            length, _ = best_prefix(probabilities, prices_ms, self.rate)
        for step in steps[length:]:
            batch.cut(step.draft, len(step.draft.proposals) - 1)

    def _take_surest(self, batch: Batch, drafts: Sequence[Draft], plain_rate: float) -> list[_Step]:
        """Fill the drafts with what might pay at the rate of plain decoding, in the order in which it is likely."""
        offers = [self._drafting.surest(draft) for draft in drafts]
        least = plain_rate * batch.least_row_ms
        queue: list[tuple[float, int, Proposal]] = []
        steps: list[_Step] = []
        for draft in drafts:
            draft.offers = []

        def offer(i: int) -> None:
            proposal = None if drafts[i].is_full else next(offers[i], None)
            if proposal is not None:
                drafts[i].offers.append(proposal)
                probability = drafts[i].probability * self._acceptance.probability(proposal.features)
                heapq.heappush(queue, (-probability, i, proposal))

        for i in range(len(drafts)):
            offer(i)
        while queue:
            negative, i, proposal = heapq.heappop(queue)
            probability = -negative
            price_ms = batch.row_ms(drafts[i])
            if (price_ms and probability < least) or not batch.can_take(drafts[i], price_ms):
                continue
            steps.append(_Step(drafts[i], probability, price_ms))
            batch.take(drafts[i], proposal, probability, price_ms)
            offer(i)
        return steps

    def _pace(self, drafts: Sequence[Draft]) -> _Pace:
        return self._paces.setdefault(frozenset(draft.request.config.mode for draft in drafts), _Pace())

    def _plain_ms(self, cost: CostModel, drafts: Sequence[Draft]) -> float:
        """The time of a pass without drafts, Python's included."""
        python_ms = len(drafts) * self._overhead_of(drafts).request.value
        return cost.pass_ms([(1, draft.context) for draft in drafts]) + python_ms

    def _bare_ms(self, cost: CostModel, drafts: Sequence[Draft]) -> float:
        """The time of a pass without what is planned, but with drafts of a fixed length."""
        windows = [(1 if _is_bounded(draft) else draft.rows, draft.context) for draft in drafts]
        return cost.pass_ms(windows) + len(drafts) * self._overhead_of(drafts).request.value

    def _rate_at_best(
        self, batch: Batch, drafts: Sequence[Draft], bare: _Bare, steps: Sequence[_Step], rows: int
    ) -> float:
        """The most tokens per millisecond that this pass can be expected to give, with the texts or the draft model,
        where it has so many rows without them."""
        tokens, time_ms, best = bare.tokens, bare.time_ms, bare.rate
        for step in steps:
            tokens, time_ms = tokens + step.probability, time_ms + step.price_ms
            best = max(best, tokens / time_ms)
        sharing = [draft for draft in drafts if self._drafting.chain(draft).model]
        tokens, time_ms, probability = bare.tokens, bare.time_ms, 1.0
        for window in range(1, 1 + LONGEST_WRITTEN if sharing else 1):
            probability *= self._consultant.expected
            tokens += len(sharing) * probability
            time_ms += batch.cost.draft_pass_ms(len(sharing)) + len(sharing) * batch.python_row_ms
            for draft in sharing:
                time_ms += batch.cost.row_ms(rows, window, draft.context)
                rows += 1
            best = max(best, tokens / time_ms)
        return best

    def _overhead_of(self, drafts: Sequence[Draft]) -> Overhead:
        """Of a pass; nothing where an answer has a form."""
        return self.overhead if all(draft.request.constraint is None for draft in drafts) else Overhead()

    def _budget(self, cost: CostModel, draft: Draft, drafts: Sequence[Draft], plain_ms: float) -> LossBudget:
        """Of a draft's answer, opened in a pass of `drafts` that takes so long without drafts."""
        budget = self._budgets.get(draft.request)
        if budget is None:
            drafted_ms = plain_ms + cost.row_ms(len(drafts), 1, draft.context)
            budget = self._budgets[draft.request] = LossBudget.of(plain_ms, drafted_ms)
        return budget


def _is_bounded(draft: Draft) -> bool:
    """Whether its answer may be delayed by so much only."""
    return draft.request.config.num_assistant_tokens is None
