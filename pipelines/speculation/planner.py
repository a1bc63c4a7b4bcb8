"""Planner: who drafts for which request, and how many tokens."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from ..engine.request import Request
from .account import Account
from .calibration import Calibration
from .consultant import Consultant
from .cost import CostModel
from .drafters.base import Proposal
from .drafting import Drafting
from .overhead import Overhead
from .turn import Pass, Turn, best_prefix

LONGEST = 32  # tokens of a draft
REMEMBER = 0.9  # weight of the passes so far in the rate of late
LONGEST_WRITTEN = 8  # tokens that the draft model is expected to write at a time, at most
LEARN_AFTER_MS = 10.0  # of passes: learning what one costs takes a tenth of a millisecond, much beside a small model
STAKE = 1 / 2  # share of what may still be lost that the rows of a draft take, unless only a longer one pays


@dataclass(frozen=True, slots=True)
class _Step:
    """One more token of a draft: the odds that it is reached and stands, and its price."""

    turn: Turn
    survival: float
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
    """The coming pass without what is planned: its requests, the tokens to be expected of it, and its time."""

    turns: Sequence[Turn]
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

    An `Account` of each answer bounds its delay, whatever fails, its own drafts or those that others bring into its
    passes, also where it has none itself: what drafts may take together is what the poorest of the pass can spare.
    Most of that is kept for later, so that one bad guess does not end all drafting: rows take the share STAKE, unless
    nothing so short is expected to pay. What stands is credited to its own answer, and the drafts of answers that go
    well soon grow as long as they pay. Times are those that `cost` predicts, and what Python usually takes, so noise
    does not enter.

    Who fixes the length of drafts gives the bound up for itself. Its rows and the time of its drafters are part of
    what a pass takes, like the rows of prompts: what others lose by them is owed to that request alone, so it is not
    charged to drafts that are planned, and nothing that these gain makes up for it.

    Asking takes Python's time, too, which matters beside small models: see `Account.is_due`. It is left out of account
    where an answer has a form: there most of it goes into what the form allows, which is due with and without drafts.
    """

    def __init__(
        self,
        drafting: Drafting,
        calibration: Calibration,
        cost: CostModel | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.cost = cost  # without it, nothing is drafted where nobody says how many tokens
        self.overhead = Overhead()
        self._calibration = calibration
        self._drafting = drafting
        self._clock = clock
        self._accounts: dict[Request, Account] = {}
        self._consultant = Consultant(drafting, calibration)
        self._paces: dict[frozenset[str], _Pace] = {}  # by the modes of a pass: each has a rate of its own
        self._delay_ms = 0.0  # that the drafts of the coming pass mean for everybody in it
        self._unlearnt_ms = 0.0  # in passes since the cost of one was learnt
        self._drafting_ms = self._observing_ms = 0.0  # what `draft` took for this pass, and `observe` for the last
        self.rate = 0.0  # what a millisecond is worth in the coming pass, in tokens

    @property
    def model_s(self) -> float:
        """Seconds that the draft model has taken, all in all."""
        return self._drafting.model_s

    def draft(self, turns: Sequence[Turn], other_rows: int = 0, most_rows: float = math.inf) -> None:
        """Fill the draft of each turn. `other_rows` of the same pass are prompts that are being read.

        Drafts are cut so that the pass has `most_rows` at most. Those of a fixed length come first, in their order;
        the last token of each answer has its row in any case.
        """
        began = self._clock()
        self._delay_ms = 0.0
        rows = other_rows + len(turns)
        planned = []
        for turn in turns:
            length = turn.request.config.num_assistant_tokens
            if length is None:
                if self._drafting.chain(turn).drafters:
                    planned.append(turn)
            else:
                length = int(max(0, min(turn.limit, length, most_rows - rows)))
                for proposal in islice(self._drafting.chained(turn), length):
                    turn.take(proposal, turn.survival * self._calibration.estimate(proposal.evidence))
                rows += len(turn.draft)
        if planned and self.cost is not None:
            self._plan(self.cost, turns, planned, rows, most_rows)
        self._drafting_ms = 1e3 * (self._clock() - began)

    def _plan(
        self, cost: CostModel, turns: Sequence[Turn], planned: Sequence[Turn], rows: int, most_rows: float
    ) -> None:
        bare_ms, spare_ms = self._plain_ms(cost, turns), math.inf
        for turn in turns:
            if _is_bounded(turn):
                spare_ms = min(spare_ms, self._account(cost, turn, turns, bare_ms).spare_ms)
        overhead = self._overhead_of(turns)
        coming = Pass(cost, rows, spare_ms, most_rows, overhead.row.value)
        asked = [turn for turn in planned if self._can_ask(coming, turn, bare_ms, overhead)]
        if not asked:
            return
        began, model_s = self._clock(), self._drafting.model_s
        tokens = len(turns) + sum(sum(turn.survivals) for turn in turns)
        bare = _Bare(turns, tokens, self._bare_ms(cost, turns))
        self._draft_from_text(coming, asked, bare)
        if self._drafting.model is not None:
            self._consultant.consult(coming, self.rate, asked)
        self._delay_ms = coming.spent_ms
        for turn in asked:
            account = self._accounts[turn.request]
            account.attempted(turn.worth(self.rate) / self.rate, overhead.asking.value, bare_ms)
        took_ms = 1e3 * (self._clock() - began - (self._drafting.model_s - model_s))
        if overhead.asking.is_doubted:
            self._delay_ms += max(0.0, took_ms - len(asked) * overhead.asking.value)
        if overhead is self.overhead:
            overhead.observe_asking(len(asked), took_ms)

    def observe(
        self,
        turns: Sequence[Turn],
        kept: Sequence[Sequence[int]],
        target_ms: float | None,
        beside_ms: float | None = None,
    ) -> None:
        """Learn from a pass: what each turn's request kept, and, where nothing else was in it, the target's time, and
        what the pass took `beside_ms` the target, drafting included."""
        began = self._clock()
        for turn, tokens in zip(turns, kept, strict=True):
            self._learn(turn, tokens)
        if self.cost is None or not turns:
            return
        if target_ms is not None:
            self._unlearnt_ms += target_ms
            if self._unlearnt_ms >= LEARN_AFTER_MS:
                self._unlearnt_ms = 0.0
                self.cost.observe([(turn.rows, turn.context) for turn in turns], target_ms)
        if beside_ms is not None and self._overhead_of(turns) is self.overhead:
            num_drafted = sum(len(turn.draft) for turn in turns)
            self.overhead.observe_rest(len(turns), num_drafted, beside_ms - self._drafting_ms + self._observing_ms)
        plain_ms = self._plain_ms(self.cost, turns)
        self._pace(turns).add(sum(map(len, kept)), self._bare_ms(self.cost, turns) + self._delay_ms)
        for turn, tokens in zip(turns, kept, strict=True):
            if _is_bounded(turn):
                self._account(self.cost, turn, turns, plain_ms).passed(len(tokens), plain_ms, self._delay_ms)
        self._delay_ms = 0.0
        self._observing_ms = 1e3 * (self._clock() - began)

    def release(self, request: Request) -> None:
        """Forget a finished request."""
        self._accounts.pop(request, None)
        self._consultant.release(request)
        self._drafting.release(request)

    def _can_ask(self, coming: Pass, turn: Turn, plain_ms: float, overhead: Overhead) -> bool:
        """Whether to ask the drafters of a turn now, which is paid for at once."""
        price_ms = overhead.asking.value
        if turn.limit <= 0 or not self._accounts[turn.request].is_due:
            return False
        if not coming.can_afford(price_ms):
            if price_ms > plain_ms:  # perhaps only because the machine was busy
                overhead.asking.doubt()
            return False
        coming.spent_ms += price_ms
        return True

    def _learn(self, turn: Turn, kept: Sequence[int]) -> None:
        """Learn how proposals fared against the tokens that were kept, also those that were not worth a row: else a
        kind of proposal that has once done badly would never be tried again."""
        for proposal, token in zip(turn.draft, kept, strict=False):
            self._calibration.observe(proposal.evidence, proposal.token == token)
        drafted = {id(proposal) for proposal in turn.draft}
        for proposal, token in zip(turn.offers, kept, strict=False):
            if id(proposal) not in drafted:
                self._calibration.observe(proposal.evidence, proposal.token == token)
            if proposal.token != token:
                return

    def _draft_from_text(self, coming: Pass, turns: Sequence[Turn], bare: _Bare) -> None:
        """Take what the texts themselves offer, the surest first, as far as it pays."""
        rows, stake_ms = coming.rows, STAKE * (coming.spare_ms - coming.spent_ms)
        steps = self._take_surest(coming, turns, bare.rate)
        late = max(self._pace(bare.turns).rate, bare.rate)  # plain decoding is there in any case
        self.rate = math.sqrt(late * self._rate_at_best(coming, turns, bare, steps, rows))
        survivals, prices_ms = [step.survival for step in steps], [step.price_ms for step in steps]
        within = sum(price_ms <= stake_ms for price_ms in accumulate(prices_ms))
        length, _ = best_prefix(survivals[:within], prices_ms[:within], self.rate)
        if not length:
            length, _ = best_prefix(survivals, prices_ms, self.rate)
        for step in steps[length:]:
            coming.cut(step.turn, len(step.turn.draft) - 1)

    def _take_surest(self, coming: Pass, turns: Sequence[Turn], plain_rate: float) -> list[_Step]:
        """Fill the drafts with what might pay at the rate of plain decoding, in the order in which it is likely."""
        offers = [self._drafting.surest(turn) for turn in turns]
        least = plain_rate * coming.least_row_ms
        queue: list[tuple[float, int, Proposal]] = []
        steps: list[_Step] = []
        for turn in turns:
            turn.offers = []

        def offer(i: int) -> None:
            proposal = None if turns[i].is_full else next(offers[i], None)
            if proposal is not None:
                turns[i].offers.append(proposal)
                survival = turns[i].survival * self._calibration.estimate(proposal.evidence)
                heapq.heappush(queue, (-survival, i, proposal))

        for i in range(len(turns)):
            offer(i)
        while queue:
            negative, i, proposal = heapq.heappop(queue)
            survival = -negative
            price_ms = coming.row_ms(turns[i])
            if (price_ms and survival < least) or not coming.can_take(turns[i], price_ms):
                continue
            steps.append(_Step(turns[i], survival, price_ms))
            coming.take(turns[i], proposal, survival, price_ms)
            offer(i)
        return steps

    def _pace(self, turns: Sequence[Turn]) -> _Pace:
        return self._paces.setdefault(frozenset(turn.request.config.mode for turn in turns), _Pace())

    def _plain_ms(self, cost: CostModel, turns: Sequence[Turn]) -> float:
        """The time of a pass without drafts, Python's included."""
        python_ms = len(turns) * self._overhead_of(turns).request.value
        return cost.pass_ms([(1, turn.context) for turn in turns]) + python_ms

    def _bare_ms(self, cost: CostModel, turns: Sequence[Turn]) -> float:
        """The time of a pass without what is planned, but with drafts of a fixed length."""
        windows = [(1 if _is_bounded(turn) else turn.rows, turn.context) for turn in turns]
        return cost.pass_ms(windows) + len(turns) * self._overhead_of(turns).request.value

    def _rate_at_best(
        self, coming: Pass, turns: Sequence[Turn], bare: _Bare, steps: Sequence[_Step], rows: int
    ) -> float:
        """The most tokens per millisecond that this pass can be expected to give, with the texts or the draft model,
        where it has so many rows without them."""
        tokens, time_ms, best = bare.tokens, bare.time_ms, bare.rate
        for step in steps:
            tokens, time_ms = tokens + step.survival, time_ms + step.price_ms
            best = max(best, tokens / time_ms)
        sharing = [turn for turn in turns if self._drafting.chain(turn).model]
        tokens, time_ms, survival = bare.tokens, bare.time_ms, 1.0
        for window in range(1, 1 + LONGEST_WRITTEN if sharing else 1):
            survival *= self._consultant.expected
            tokens += len(sharing) * survival
            time_ms += coming.cost.draft_pass_ms(len(sharing)) + len(sharing) * coming.python_row_ms
            for turn in sharing:
                time_ms += coming.cost.row_ms(rows, window, turn.context)
                rows += 1
            best = max(best, tokens / time_ms)
        return best

    def _overhead_of(self, turns: Sequence[Turn]) -> Overhead:
        """Of a pass; nothing where an answer has a form."""
        return self.overhead if all(turn.request.constraint is None for turn in turns) else Overhead()

    def _account(self, cost: CostModel, turn: Turn, turns: Sequence[Turn], plain_ms: float) -> Account:
        """Of a turn's answer, opened in a pass of `turns` that takes so long without drafts."""
        account = self._accounts.get(turn.request)
        if account is None:
            drafted_ms = plain_ms + cost.row_ms(len(turns), 1, turn.context)
            account = self._accounts[turn.request] = Account.of(plain_ms, drafted_ms)
        return account


def _is_bounded(turn: Turn) -> bool:
    """Whether its answer may be delayed by so much only."""
    return turn.request.config.num_assistant_tokens is None
