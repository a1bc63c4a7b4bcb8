"""Consultant: when the draft model is asked, and for what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from ..config import AUTO
from ..engine.request import Request
from .acceptance import AcceptanceModel, Features
from .cost import CostModel
from .draft import Batch, Draft
from .drafters.base import Opinion, Proposal
from .drafting import Drafting
from .worth import Worth

LEAST_READ = 0.1  # a draft is read as far as it is that likely to stand
HOPED = 0.8  # what is expected of a model's next proposal before it was asked: what pays is found out by asking only
DOUBTED = 4  # proposals that this counts for
FORGET = 0.05  # weight of the newest proposal in what is expected of the next one, at least
RECOVER = 0.0003  # how fast that goes back to what was hoped for while the model is not asked

READ, WRITE_BEHIND, WRITE_INSTEAD = "read", "write behind", "write instead"

# Weights of what is thought of a text's proposal when the draft model has read it, bias first, to begin with. The
# features are half the log-odds of both: for a token on which they agree; for the text's where the model would write
# another; for the model's, with the odds of the text's token.
PRIORS = {
    "agreed": (1.7, 0.7, 0.85), "doubted": (0.0, 0.6, 0.55), "mended": (0.0, -0.55, 1.05),
    "agreed sampled": (0.85, 0.9, 0.8), "doubted sampled": (-0.6, 0.7, 0.7), "mended sampled": (-0.3, -0.75, 1.1),
}  # fmt: skip


Answer = TypeVar("Answer")  # of the draft model, for one draft


@dataclass(slots=True)
class _Wait:
    """How many passes the draft model is not asked for a request, of how many that it was not."""

    left: int = 0
    last: int = 0

    def again(self) -> None:
        self.left = self.last = max(1, 2 * self.last)


class Consultant:
    """Lets the draft model read and mend what the texts offer, or write behind it or in its place (see `Planner`).

    expected: the probability that its next proposal stands, as far as can be told before it is asked.

    Where the draft model has no room for a request, which passes as others end, it is asked again after 1 pass, then
    after 2 more, 4, 8, and so on: twice as long as was needed at most, and hardly ever where there is never room.
    """

    def __init__(self, drafting: Drafting, acceptance: AcceptanceModel) -> None:
        self._drafting = drafting
        self._acceptance = acceptance
        self.expected = HOPED
        self._num_expected = DOUBTED  # proposals that this rests on
        self._waits: dict[Request, _Wait] = {}  # for room in the model's cache
        self._missed: dict[Request, float] = {}  # tokens that it would have brought since it was fed, had it been

    def release(self, request: Request) -> None:
        """Forget a finished request."""
        self._waits.pop(request, None)
        self._missed.pop(request, None)

    def consult(self, batch: Batch, rate: float, drafts: Sequence[Draft]) -> None:
        """Let the draft model read drafts, or write behind them or in their place, where that is expected to pay and
        can be afforded. `rate` is what a millisecond is worth, in tokens."""
        for draft in drafts:
            if (wait := self._waits.get(draft.request)) is not None and wait.left:
                wait.left -= 1
        asking = [draft for draft in drafts if self._can_ask(draft)]
        if not asking:
            return
        uses: list[str | None] = []
        for draft in asking:
            uses.append(self._best_use(batch, rate, draft, len(asking), uses))
        reading = [draft for draft, use in zip(asking, uses, strict=True) if use == READ]
        writing = [draft for draft, use in zip(asking, uses, strict=True) if use in (WRITE_BEHIND, WRITE_INSTEAD)]
        if not reading and not writing:
            self.expected += RECOVER * (HOPED - self.expected)
            batch.cost.forget_draft()
            return
        if reading:
            self._read(batch, rate, reading)
            reading = [draft for draft in reading if self._can_ask(draft)]
            for draft in reading:
                if self._is_worth_writing(batch, rate, draft, len(reading), bool(writing)):
                    writing.append(draft)
        going_on = writing
        while going_on:
            going_on = self._write(batch, rate, going_on)
        for draft in writing:
            batch.cut_to_best(draft, rate)
            batch.release(draft)

    def _can_ask(self, draft: Draft) -> bool:
        wait = self._waits.get(draft.request)
        return self._drafting.can_ask_model(draft) and not draft.is_full and (wait is None or not wait.left)

    def _asked(
        self,
        batch: Batch,
        ask: Callable[[Sequence[Draft]], Sequence[Answer | None]],
        drafts: Sequence[Draft],
        aheads: Sequence[Sequence[int]],
    ) -> Sequence[Answer | None]:
        """What the draft model answers for each draft, with so much ahead of its text. Each bears its share of the time
        that this should take, together no more than was reserved, since this pass may have shown that the model is
        slower than was thought then. What it takes is learnt from where there is an answer for all."""
        cost = batch.cost
        share_ms = cost.draft_pass_ms(len(drafts)) / len(drafts)
        shares_ms = [share_ms + self._feeding_ms(cost, *each) for each in zip(drafts, aheads, strict=True)]
        expected_ms = sum(shares_ms)
        reserved_ms = sum(draft.reserved_ms for draft in drafts)
        for draft, part_ms in zip(drafts, shares_ms, strict=True):
            batch.release(draft)
            batch.charge(draft, part_ms * min(1.0, reserved_ms / expected_ms) if expected_ms else 0.0)
        began = self._drafting.model_s
        answers = ask(drafts)
        for draft, answer in zip(drafts, answers, strict=True):
            if answer is None:
                self._waits.setdefault(draft.request, _Wait()).again()
            else:
                self._waits.pop(draft.request, None)
        if None not in answers:
            cost.observe_draft(expected_ms, 1e3 * (self._drafting.model_s - began))
        return answers

    def _worth(self, batch: Batch, rate: float) -> Worth:
        return Worth(batch.cost, rate, self.expected, batch.python_row_ms)

    def _best_use(
        self, batch: Batch, rate: float, draft: Draft, num_sharing: int, others: Sequence[str | None]
    ) -> str | None:
        """What the draft model is worth most for, if it is worth its time, which is reserved; `others` are the uses of
        those who may share its passes. The draft is made ready for that: dropped where the model is to write in its
        place, and as long as the texts offer where it is to be read, outside the pass until then."""
        worth, behind, length = self._worth(batch, rate), self._drafting.num_behind(draft), len(draft.proposals)
        rows_ms = batch.draft_ms(draft)

        def time_ms(use: str) -> float:
            """What feeding the model and its first pass take."""
            num_drafted = {WRITE_BEHIND: length, WRITE_INSTEAD: 0, READ: draft.num_read}[use]
            is_shared = any(other is not None and (other == READ) == (use == READ) for other in others)
            return _share_ms(batch.cost, is_shared) + worth.feeding_ms(behind, num_drafted)

        bare = batch.rows - length
        mine = worth.of_draft(draft, bare)
        uses: dict[str, float] = {}
        if batch.can_afford(time_ms(WRITE_BEHIND)):
            feeding_ms = worth.feeding_ms(behind, length)
            uses[WRITE_BEHIND] = worth.of_writing(draft, length, batch.rows, feeding_ms, num_sharing, batch.remaining_ms)
        if length and draft.request.config.mode == AUTO and batch.can_afford(time_ms(WRITE_INSTEAD) - rows_ms):
            feeding_ms = worth.feeding_ms(behind, 0)
            written = worth.of_writing(draft, 0, bare, feeding_ms, num_sharing, batch.remaining_ms + rows_ms)
            uses[WRITE_INSTEAD] = written - mine
            self._take_all_offers(draft)
            of_reading, draft.num_read = worth.of_reading(draft, length, bare, behind, num_sharing)
            if batch.can_afford(time_ms(READ) - rows_ms):
                uses[READ] = of_reading - mine
        use = max(uses, key=lambda name: uses[name], default=None)
        if use is None or uses[use] + self._regret(draft, rate * worth.feeding_ms(behind, 0), uses) <= 0:
            draft.cut(length)
            return None
        self._missed.pop(draft.request, None)
        offers = draft.proposals.copy()
        draft.cut(length)
        if use != WRITE_BEHIND:
            batch.cut(draft, 0)
        if use == READ:
            draft.proposals = offers
        batch.reserve(draft, time_ms(use))
        return use

    def _regret(self, draft: Draft, feeding: float, uses: Mapping[str, float]) -> float:
        """How much of the price of `feeding` the model what it missed need not be paid by this pass alone: as much as
        the model would have brought in passes for which the texts offered nothing, had it been fed before. So little is
        lost whether the answer goes on or ends (ski rental; Karlin et al., Competitive snoopy caching, 1988)."""
        missed = self._missed.get(draft.request, 0.0)
        if not draft.proposals and WRITE_BEHIND in uses:
            self._missed[draft.request] = missed + max(0.0, uses[WRITE_BEHIND] + feeding)
        return min(missed, feeding)

    def _take_all_offers(self, draft: Draft) -> None:
        for proposal in self._drafting.surest(draft):
            probability = draft.probability * self._acceptance.probability(proposal.features)
            if draft.is_full or probability < LEAST_READ:
                return
            draft.take(proposal, probability)

    def _read(self, batch: Batch, rate: float, drafts: Sequence[Draft]) -> None:
        """Have drafts read, and take of each what is likely to stand now."""
        aheads = [draft.tokens[: draft.num_read] for draft in drafts]
        for draft, opinions in zip(drafts, self._asked(batch, self._drafting.read, drafts, aheads), strict=True):
            unread = draft.proposals.copy()
            draft.cut(0)
            is_mended = False
            for proposal, opinion in zip_longest(unread, (opinions or ())[: draft.num_read]):
                second = proposal
                if opinion is not None:
                    second = self._second_thought(proposal, opinion, draft.request.config.greedy)
                if not self._take(batch, rate, draft, second):
                    break
                if is_mended := second.token != proposal.token:
                    break
            if is_mended:
                for proposal in self._drafting.surest(draft):  # copying goes on
                    if not self._take(batch, rate, draft, proposal):
                        break
            batch.cut_to_best(draft, rate)

    def _take(self, batch: Batch, rate: float, draft: Draft, proposal: Proposal) -> bool:
        """Take one more token into a draft, unless no row could be so cheap that it pays, or it is too much to lose."""
        probability, price_ms = draft.probability * self._acceptance.probability(proposal.features), batch.row_ms(draft)
        if probability < rate * batch.least_row_ms or not batch.can_take(draft, price_ms):
            return False
        batch.take(draft, proposal, probability, price_ms)
        return True

    def _second_thought(self, proposal: Proposal, opinion: Opinion, is_greedy: bool) -> Proposal:
        """The likelier of what a text proposes and what the draft model would write there."""
        odds, kind = self._acceptance.log_odds(proposal.features) / 2, "" if is_greedy else " sampled"
        own = opinion.proposal
        if own.token == proposal.token:
            return replace(proposal, features=Features(f"agreed{kind}", (odds, opinion.log_odds / 2)))
        doubted = replace(proposal, features=Features(f"doubted{kind}", (odds, opinion.log_odds / 2)))
        mended = replace(own, features=Features(f"mended{kind}", (odds, own.features.values[0])))
        return self._acceptance.likeliest((doubted, mended))

    def _is_worth_writing(self, batch: Batch, rate: float, draft: Draft, num_sharing: int, is_shared: bool) -> bool:
        """Whether the model is to go on behind the draft, of which it may have read a part. Its time is reserved."""
        feeding_ms = self._feeding_ms(batch.cost, draft, draft.tokens)
        price_ms = feeding_ms + _share_ms(batch.cost, is_shared)
        length = len(draft.proposals)
        worth = self._worth(batch, rate).of_writing(draft, length, batch.rows, feeding_ms, num_sharing, batch.remaining_ms)
        if worth <= 0 or not batch.can_take(draft, batch.row_ms(draft) + price_ms):
            return False
        batch.reserve(draft, price_ms)
        return True

    def _write(self, batch: Batch, rate: float, writing: Sequence[Draft]) -> list[Draft]:
        """Have the draft model write one token behind each draft; returns those whose next is worth writing, too."""
        proposals = self._asked(batch, self._drafting.written, writing, [draft.tokens for draft in writing])
        goes_on: list[Draft] = []
        for draft, proposal in zip(writing, proposals, strict=True):
            if proposal is None:
                continue
            self._num_expected += 1
            weight = max(FORGET, 1 / self._num_expected)
            self.expected += weight * (self._acceptance.probability(proposal.features) - self.expected)
            is_taken = self._take(batch, rate, draft, proposal)
            if is_taken and self._is_worth_writing(batch, rate, draft, len(writing), bool(goes_on)):
                goes_on.append(draft)
        return goes_on

    def _feeding_ms(self, cost: CostModel, draft: Draft, ahead: Sequence[int]) -> float:
        """The time in which the draft model is fed what it missed of a text, and what is ahead of that."""
        return cost.feeding_ms(self._drafting.num_behind(draft, ahead) - 1)


def _share_ms(cost: CostModel, is_shared: bool) -> float:
    """What one more request adds to the draft model's time for a pass."""
    return cost.draft_row_ms if is_shared else cost.draft_pass_ms(1)
