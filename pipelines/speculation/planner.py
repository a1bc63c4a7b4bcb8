"""Planner: who drafts for each request, and how many tokens."""

from __future__ import annotations

import heapq
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..engine.request import Request
from ..model.target import Window
from .acceptance import AcceptanceModel
from .budgets import Budgets, LossBudget
from .cost import CostModel
from .draft import Batch, Draft, Kind, best_prefix_sparing
from .draft_model_policy import DraftModelPolicy, best_first
from .drafter_set import DrafterSet
from .drafters.base import Proposal
from .overhead import Overhead
from .owed_rows import OwedRows
from .pass_size import PassSize
from .rate import BarePass, Pace, Step, highest_rate, plain_and_bare_ms
from .readers import Readers

LEARN_AFTER_MS = 10.0  # of passes: updating the cost model takes 0.1 ms, much compared with a pass of a small model
UNCOUNTED = Overhead()  # zero, and nothing is added to it
COMPARE_EVERY = 8  # passes: comparing the draft model and the head takes 0.1 ms
SCARCE = 4  # plain passes: answers whose budgets are this close to the smallest come first


class Planner:
    """Decides who drafts for each request of a pass, and how many tokens.

    The mode of a request names its drafters, each of which goes on where the one before it ends. With
    `num_assistant_tokens`, that many tokens are drafted, otherwise as many as pay: a draft whose tokens are accepted
    with the conditional probabilities a1, a2, ... adds a1 + a1 a2 + ... tokens, and is extended while the probability
    that all of it is accepted exceeds the time that it adds times `rate`, what a millisecond is worth in tokens. By the
    renewal-reward theorem the best `rate` is that of the best policy in the long run. As answers change between copying
    and writing anew, it is the geometric mean of the recent rate in the same modes and of the highest rate that this
    pass can be expected to have. All requests share one pass, so the likeliest tokens are taken first, and a full pass
    leaves no room for doubtful ones.

    A draft model or a head runs where its time, too, is expected to pay: it generates tokens after those of the text
    drafters. In mode "auto" it can also generate in their place or score them: one pass tells for each token whether
    the model agrees, and what it would write instead (a cascade, as in Chen et al., arXiv 2312.11462). Where a mode has
    both, the one that promises more is asked.

    The `LossBudget` of each answer bounds its delay, by its own drafts or by those of others in its passes. All drafts
    of a pass together may take what the answer with the least budget has left. They take the share PER_DRAFT of that,
    so that one rejected draft does not end all drafting, unless nothing so short is expected to pay. Copies that are
    too short to pay at `rate` are drafted if they are faster than plain decoding. Accepted tokens are credited to their
    own answer, and drafts grow quickly while they are accepted. So answers whose budgets are close to the smallest come
    first: only their accepted tokens keep drafting alive for all. Times are those predicted by `cost` and Python's
    usual ones, so noise does not enter.

    A prompt that is read in the same passes is given more rows, so that it is read as fast as with plain decoding (see
    `OwedRows`). Requests with a fixed draft length have no bound. Their rows and their drafters' time count as part of
    the plain pass, like rows of prompts: what they cost others is not charged to planned drafts.

    Before they are asked for the first time, the text drafters index the prompt, as soon as all answers of the pass may
    lose the time that this takes. Asking them takes Python's time, too, and so does considering a model after them,
    which matters with small models: both are tried less often while they are not worth it (see `Attempts`). Offering
    more tokens costs more. That cost is subtracted from the attempt's gain and does not lower how often drafters are
    asked. For an answer with structured output no such time is counted, since most of it goes into the grammar, which
    plain decoding needs too.
    """

    def __init__(
        self,
        drafter_set: DrafterSet,
        acceptance: AcceptanceModel,
        cost: CostModel | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.cost = cost  # without it, only drafts of a fixed length are made
        self.overhead = Overhead()
        self._acceptance = acceptance
        self._drafters = drafter_set
        self._clock = clock
        self._budgets = Budgets()
        self._size = PassSize()
        self._owed = OwedRows()
        self._policies = [DraftModelPolicy(model, drafter_set, acceptance) for model in drafter_set.models]
        self._readers = Readers(drafter_set, self._policies)
        self._num_planned = 0  # passes
        self._paces: defaultdict[frozenset[Kind], Pace] = defaultdict(Pace)  # by the kinds of requests
        self._delay_ms = 0.0  # delay of the pass by its drafts, for every request in it
        self._unlearnt_ms = 0.0  # time of passes since the cost model was updated
        self._planned: Sequence[Draft] = ()  # drafts of the next pass
        self._bare_rows = 0  # of the next pass without planned drafts
        self._is_mixed = False  # whether `observe` got no `target_ms` of the last pass
        self._may_lose = True  # whether every answer of the pass may lose time
        self._drafting_ms = self._reading_ms = 0.0  # of `draft` and `read` in this pass
        self._observing_ms = 0.0  # of `observe` in the last
        self.rate = 0.0  # what a millisecond of the pass is worth, in tokens

    @property
    def model_s(self) -> float:
        """Total time of the models that draft, in seconds."""
        return self._drafters.model_s

    @property
    def num_owed_rows(self) -> int:
        """Rows of prompts that the next pass is to have beyond those that it would read with plain decoding."""
        return self._owed.number

    def draft(
        self, drafts: Sequence[Draft], other_rows: int = 0, most_rows: float = math.inf, owed_rows: int = 0
    ) -> None:
        """Fill the drafts of a pass that also has `other_rows` of prompts, `owed_rows` of which were owed to them.

        The pass gets at most `most_rows`: a row for the last token of each request, then drafts of a fixed length in
        their order, then those that are planned.
        """
        began = self._clock()
        self._delay_ms = self._reading_ms = 0.0
        rows = other_rows + len(drafts)
        if self.cost is not None:
            self._delay_ms = self._owed.give(self.cost, len(drafts), other_rows - owed_rows, owed_rows)
        planned = []
        for draft in drafts:
            length = draft.request.config.num_assistant_tokens
            if length is None:
                if self._drafters.of(draft.request).drafters and not self._budgets.rests(draft.request):
                    planned.append(draft)
            else:
                length = int(max(0, min(draft.limit, length, most_rows - rows)))
                for proposal in islice(self._drafters.chained(draft), length):
                    probability = self._acceptance.probability(proposal.features, draft.conditions)
                    draft.take(proposal, draft.probability * probability)
                rows += len(draft.proposals)
        self._planned, self._bare_rows = planned, rows - owed_rows
        if planned and self.cost is not None:
            self._plan(self.cost, drafts, planned, rows, most_rows)
        begun = (self._budgets.get(draft.request) for draft in drafts)
        self._may_lose = all(budget is None or budget.remaining_ms > self._to_read_ms for budget in begun)
        self._drafting_ms = 1e3 * (self._clock() - began)

    def _plan(
        self, cost: CostModel, drafts: Sequence[Draft], planned: Sequence[Draft], rows: int, most_rows: float
    ) -> None:
        planned = [draft for draft in planned if draft.limit > 0 and self._budgets.is_due(draft.request)]
        if not planned:
            return
        overhead = self._overhead_of(*drafts)
        plain_ms, bare_ms = plain_and_bare_ms(cost, drafts, overhead)
        budgets = [self._budget(cost, draft, drafts, plain_ms) for draft in drafts if draft.is_bounded]
        # The time that it takes to return to plain passes and to hand on the results of this one is kept in reserve.
        budget_ms = min(budget.remaining_ms for budget in budgets) - cost.changing_ms - self._to_read_ms
        standing_ms, lost_ms = self._size.standing_ms(cost, self._bare_rows)
        if lost_ms > max(0.0, budget_ms):  # else rows that are free at this size would keep the pass at it for ever
            return
        budget_ms = (1 - self._owed.share(cost)) * (budget_ms - lost_ms) - self._delay_ms
        tokens = len(drafts) + sum(sum(draft.probabilities) for draft in drafts)
        bare = BarePass(drafts, tokens, bare_ms, standing_ms)
        batch = Batch(cost, rows, budget_ms, most_rows, overhead.row.value, self._size.last(cost), bare.rate)
        asked = [draft for draft in planned if self._budgets.is_due(draft.request)]  # now new answers have budgets, too
        asked = [draft for draft in asked if self._drafters.index(draft.request, batch.pays)]
        asked = [draft for draft in asked if batch.can_pay(self._overhead_of(draft).asking, plain_ms)]
        if not asked:
            self._delay_ms += batch.spent_ms
            return
        began = self._clock()
        if len(self._policies) > 1 and self._num_planned % COMPARE_EVERY == 0:
            self._policies = best_first(self._policies, cost, asked[0].context, asked[0].kind)
        self._num_planned += 1
        by_policy = self._by_policy(asked)
        hopeful = {policy: _due(policy, its_drafts) for policy, its_drafts in by_policy.items()}
        form_s = self._drafters.form_s
        self._draft_from_text(batch, asked, hopeful, bare)
        self._asked(batch, asked, 1e3 * (self._clock() - began - (self._drafters.form_s - form_s)))
        for policy, its_drafts in by_policy.items():
            due = _due(policy, its_drafts)
            for draft in its_drafts:
                policy.attempts(draft).wait()
            self._consider(policy, batch, due, plain_ms)
        self._delay_ms += batch.spent_ms
        for draft in asked:
            own = self._overhead_of(draft)
            gain_ms = draft.gain(self.rate) / self.rate - draft.num_further * own.offering.value
            self._budgets[draft.request].attempts.made(gain_ms, own.asking.value, plain_ms)

    def fill(self, num_rows: int) -> int:
        """How many rows pad the pass that was drafted for, which has `num_rows`, to the size of the last (see
        `PassSize`). The time by which it takes longer than without planned drafts counts as a delay by drafting.

        Plain decoding alone is never padded, so that it writes the same text again even where the last bits depend on
        the number of rows. Nor are answers padded for which no drafter is asked any more.
        """
        cost, size = self.cost, self._size
        if cost is None or not cost.changing_ms:
            return 0
        probabilities = [p for draft in self._planned for p in draft.probabilities]
        size.take(cost, num_rows, self._bare_rows, probabilities, self.rate or math.inf, bool(self._planned))
        self._delay_ms += size.unpriced_ms(cost)
        return size.num_filling

    def _consider(self, policy: DraftModelPolicy, batch: Batch, drafts: Sequence[Draft], plain_ms: float) -> None:
        """Draft with a model where that is expected to pay."""
        drafts = [draft for draft in drafts if batch.can_pay(self._overhead_of(draft).considering, plain_ms)]
        if not drafts:
            policy.rest(batch.cost)
            return
        began, model_s = self._clock(), self._drafters.model_s
        before = [(policy.attempts(draft), draft.gain(self.rate)) for draft in drafts]
        policy.draft(batch, self.rate, drafts)
        for draft, (tried, gain) in zip(drafts, before, strict=True):
            gain_ms = (draft.gain(self.rate) - gain + draft.credit) / self.rate
            tried.made(gain_ms, self._overhead_of(draft).considering.value, plain_ms)
        if not any(draft.has_form for draft in drafts):
            considering = self.overhead.considering
            took_ms = 1e3 * (self._clock() - began - (self._drafters.model_s - model_s))
            batch.charge_doubted(considering, len(drafts), took_ms)
            considering.add(took_ms / len(drafts))

    def _asked(self, batch: Batch, drafts: Sequence[Draft], took_ms: float) -> None:
        """Learn what asking the text drafters took, without that of answers with structured output."""
        drafts = [draft for draft in drafts if not draft.has_form]
        if drafts:
            overhead, num_further = self.overhead, sum(draft.num_further for draft in drafts)
            batch.charge_doubted(overhead.asking, len(drafts), took_ms - num_further * overhead.offering.value)
            overhead.observe_asking(len(drafts), num_further, took_ms)

    def observe(
        self,
        drafts: Sequence[Draft],
        kept: Sequence[Sequence[int]],
        target_ms: float | None,
        beside_ms: float | None = None,
    ) -> None:
        """Learn from a pass.

        kept: the tokens that each request gained.
        target_ms: the target's time; None if the pass had other rows than those of the drafts, or rows of which a draft
            by the target itself had computed a part. The pass after such a one may take longer than its size suggests,
            so its time is not learnt from either.
        beside_ms: the time of the rest of the pass, drafting included; None if the pass had other rows.
        """
        began = self._clock()
        for draft, tokens in zip(drafts, kept, strict=True):
            self._learn(draft, tokens)
        is_first, self._is_mixed = self._is_mixed, target_ms is None
        self._owed.passed(self._delay_ms)
        if self.cost is None or not drafts:
            return
        if target_ms is not None and not is_first:
            self._unlearnt_ms += target_ms
            if self._unlearnt_ms >= LEARN_AFTER_MS:
                self._unlearnt_ms = 0.0
                windows = [(draft.rows, draft.context) for draft in drafts]
                if self._size.num_filling:
                    windows.append((self._size.num_filling, 0))
                self.cost.observe(windows, target_ms, self._size.has_changed)
        if beside_ms is not None and not any(draft.has_form for draft in drafts):
            num_drafted = sum(len(draft.proposals) for draft in drafts)
            rest_ms = beside_ms - self._drafting_ms - self._reading_ms + self._observing_ms
            self.overhead.observe_rest(len(drafts), num_drafted, rest_ms)
        if self._planned or self._delay_ms:  # there is a delay even after the last drafts of others
            self._charge(self.cost, drafts, kept)
        self._delay_ms = 0.0
        self._observing_ms = 1e3 * (self._clock() - began)

    def _charge(self, cost: CostModel, drafts: Sequence[Draft], kept: Sequence[Sequence[int]]) -> None:
        """Charge each answer the time by which drafts have delayed the pass."""
        plain_ms, bare_ms = plain_and_bare_ms(cost, drafts, self._overhead_of(*drafts))
        self._pace(drafts).add(sum(map(len, kept)), bare_ms + self._delay_ms)
        for draft, tokens in zip(drafts, kept, strict=True):
            if draft.is_bounded:
                self._budget(cost, draft, drafts, plain_ms).passed(len(tokens), plain_ms, self._delay_ms)

    def read(
        self, request: Request, window: Window, logits: NDArray[np.float32], states: NDArray[np.float32] | None
    ) -> None:
        """Hand on the results of a pass to the drafters that read them (see `DrafterSet.read`), unless nothing more is
        drafted for the answer. The time counts as a delay by drafting. Where an answer of the pass may not lose that
        time, logits are not read, and drafters that read hidden states are left out of the rest of the answers without
        a fixed draft length, since they would miss some states."""
        if not self._may_lose and request.config.num_assistant_tokens is None:
            self._readers.leave_out_of(request)
        if self._budgets.rests(request) or not self._readers.reads(request, self.cost):
            return
        began = self._clock()
        self._drafters.read(request, window, logits if self._may_lose else None, states)
        took_ms = 1e3 * (self._clock() - began)
        self._reading_ms += took_ms
        if self._may_lose:
            self.overhead.reading.add(took_ms)
            if self._budgets.get(request) is not None:
                self._delay_ms += self.overhead.reading.value

    def release(self, request: Request) -> None:
        """Forget a finished request."""
        self._readers.release(request)
        self._budgets.release(request)
        for policy in self._policies:
            policy.release(request)
        self._drafters.release(request)

    def _learn(self, draft: Draft, kept: Sequence[int]) -> None:
        """Compare proposals with the tokens that were kept, including proposals that were not worth a row: otherwise a
        kind of proposal that once did badly would never be tried again."""
        known: set[int] = set()
        for proposals in (draft.proposals, *draft.offers):
            for proposal, token in zip(proposals, kept, strict=False):
                if id(proposal) not in known:
                    known.add(id(proposal))
                    self._acceptance.observe(proposal.features, proposal.token == token, draft.conditions)
                if proposal.token != token:
                    break

    def _draft_from_text(
        self,
        batch: Batch,
        drafts: Sequence[Draft],
        by_policy: Mapping[DraftModelPolicy, Sequence[Draft]],
        bare: BarePass,
    ) -> None:
        """Take what the text drafters propose, the likeliest first, as far as it pays."""
        rows, most_ms = batch.rows, batch.sparing_ms
        steps = self._take_surest(batch, drafts, bare)
        recent = max(self._pace(bare.drafts).rate, batch.bare_rate)  # plain decoding is possible in any case
        self.rate = math.sqrt(recent * highest_rate(batch, by_policy, bare, steps, rows))
        probabilities, prices_ms = [step.probability for step in steps], [step.price_ms for step in steps]
        length = best_prefix_sparing(probabilities, prices_ms, self.rate, batch.bare_rate, most_ms)
        if length < len(steps):
            for draft in drafts:
                batch.cut(draft, sum(step.draft is draft for step in steps[:length]))

    def _take_surest(self, batch: Batch, drafts: Sequence[Draft], bare: BarePass) -> list[Step]:
        """Fill the drafts with all that might pay at the rate of plain decoding: first those of answers whose budgets
        are close to the smallest, and the likeliest tokens first."""
        surest = [islice(self._drafters.surest(draft), draft.limit - len(draft.proposals)) for draft in drafts]
        offering_ms = [self._overhead_of(draft).offering.value for draft in drafts]
        rate, scarce_ms = batch.bare_rate, batch.budget_ms + SCARCE * bare.time_ms
        is_later = [self._budgets[draft.request].remaining_ms > scarce_ms for draft in drafts]
        queue: list[tuple[bool, float, int, Proposal]] = []
        steps: list[Step] = []
        for draft in drafts:
            draft.offers = [[]]

        def offer(i: int, reached: float) -> None:
            if (offered := next(surest[i], None)) is not None:
                proposal, probability = offered
                if drafts[i].offers[0]:
                    batch.spent_ms += offering_ms[i]
                drafts[i].offers[0].append(proposal)
                heapq.heappush(queue, (is_later[i], -reached * probability, i, proposal))

        for i, draft in enumerate(drafts):
            offer(i, draft.probability)
        while queue:
            _, negative, i, proposal = heapq.heappop(queue)
            if batch.take(drafts[i], proposal, -negative, rate):
                steps.append(Step(drafts[i], -negative, drafts[i].prices_ms[-1]))
                if batch.can_afford(offering_ms[i]):
                    offer(i, -negative)
        return steps

    @property
    def _to_read_ms(self) -> float:
        """The time that it takes to hand on the results of the pass."""
        return len(self._planned) * self.overhead.reading.value

    def _pace(self, drafts: Sequence[Draft]) -> Pace:
        return self._paces[frozenset(draft.kind for draft in drafts)]

    def _by_policy(self, drafts: Sequence[Draft]) -> dict[DraftModelPolicy, list[Draft]]:
        """Each model's policy, with the drafts for which that model is the best of those in their mode."""
        chosen: dict[DraftModelPolicy, list[Draft]] = {policy: [] for policy in self._policies}
        for draft in drafts:
            for policy in self._policies:
                if self._drafters.can_ask(policy.model, draft):
                    chosen[policy].append(draft)
                    break
        return chosen

    def _overhead_of(self, *drafts: Draft) -> Overhead:
        """Python's times for a pass; zero where all answers have structured output."""
        return UNCOUNTED if all(draft.has_form for draft in drafts) else self.overhead

    def _budget(self, cost: CostModel, draft: Draft, drafts: Sequence[Draft], plain_ms: float) -> LossBudget:
        """The budget of a draft's request, which begins with a pass of `drafts` that takes `plain_ms` without them."""
        budget = self._budgets.get(draft.request)
        if budget is None:
            drafted_ms = plain_ms + cost.row_ms(len(drafts), 1, draft.context) + cost.changing_ms
            asking_ms = self._overhead_of(draft).asking.value
            budget = self._budgets.begin(draft, plain_ms, drafted_ms, asking_ms)
        return budget


def _due(policy: DraftModelPolicy, drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts for which the model is to be considered now."""
    return [draft for draft in drafts if policy.attempts(draft).is_due]
