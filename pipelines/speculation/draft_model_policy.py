"""DraftModelPolicy: when a draft model or a head runs, and whether it generates tokens or scores those of the text
drafters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar

from ..config import AUTO
from ..engine.request import Request
from .acceptance import AcceptanceModel, Features
from .attempts import Attempts, Trials
from .cost import CostModel
from .draft import Batch, Draft, Kind
from .draft_cost import DraftCost, DraftTime
from .drafter_set import DrafterSet
from .drafters.base import ModelDrafter, Proposal, Score
from .expected_acceptance import ExpectedAcceptance
from .expected_gain import ExpectedGain
from .speedup import speedup_of

LONGEST_GENERATED = 8  # tokens that a model is expected to generate at a time, at most
LEAST_SCORED = 0.1  # tokens of a draft are scored as far as it is accepted with this probability
RESTS = 8  # passes without asking the model are noted this many at a time, as noting takes a hundredth of a short pass

SCORE, GENERATE_BEHIND, GENERATE_INSTEAD = "score", "generate behind", "generate instead"

# Initial weights, bias first, for tokens of text drafters that the draft model has scored. The features are half the
# log-odds by either: of a token on which they agree ("agreed"); of the text drafter's token where the model prefers
# another ("doubted"); there, of the text drafter's token and of the model's own, which may replace it ("mended").
PRIORS = {
    "agreed": (1.7, 0.7, 0.85), "doubted": (0.0, 0.6, 0.55), "mended": (0.0, -0.55, 1.05),
    "agreed sampled": (0.85, 0.9, 0.8), "doubted sampled": (-0.6, 0.7, 0.7), "mended sampled": (-0.3, -0.75, 1.1),
}  # fmt: skip


Answer = TypeVar("Answer")  # of the draft model, for one draft


@dataclass(slots=True)
class _Backoff:
    """Passes in which the draft model is not asked for a request, since it had no room for it."""

    left: int = 0
    last: int = 0

    def again(self) -> None:
        self.left = self.last = max(1, 2 * self.last)


@dataclass(slots=True)
class _Asked:
    """The passes of the draft model before a pass of the target: their expected time, the time measured, and whether
    every draft got an answer."""

    expected: DraftTime = field(default_factory=DraftTime)
    measured_ms: float = 0.0
    is_whole: bool = True


class DraftModelPolicy:
    """Decides for each draft whether one model, a draft model or a head, generates tokens after it, generates others in
    its place, or scores it (see `Planner`).

    A proposal that was drawn (see `Proposal`) is taken whatever it is, if there is room.

    Where the draft model's cache has no room for a request, it is asked again after 1 pass, then after 2 more, 4, 8 and
    so on, as other requests may have ended by then.
    """

    def __init__(self, model: ModelDrafter, drafters: DrafterSet, acceptance: AcceptanceModel) -> None:
        self.model = model
        self._drafters = drafters
        self._acceptance = acceptance
        self.expected = ExpectedAcceptance()
        self._attempts: defaultdict[tuple[Kind, bool], Attempts] = defaultdict(Attempts)  # see `attempts`
        self._trials = Trials()
        self._backoffs: dict[Request, _Backoff] = {}
        self._missed: dict[Request, float] = {}  # tokens that it would have added since it last caught up
        self._num_rests = 0  # passes without asking it that are not noted yet
        self._begun: set[Request] = set()  # requests whose draft for the next pass it has begun
        self._asked_now = _Asked()

    def release(self, request: Request) -> None:
        """Forget a finished request."""
        self._backoffs.pop(request, None)
        self._missed.pop(request, None)

    def draft(self, batch: Batch, rate: float, drafts: Sequence[Draft]) -> None:
        """Extend, replace or correct drafts with the draft model where that is expected to pay and is within the
        budget.

        rate: what a millisecond is worth, in tokens.
        """
        self._begun.clear()
        self._asked_now = asked = _Asked()
        for draft in drafts:
            if (backoff := self._backoffs.get(draft.request)) is not None and backoff.left:
                backoff.left -= 1
        asking = [draft for draft in drafts if self._can_ask(draft)]
        if not asking:
            return
        uses: list[str | None] = []
        for draft in asking:
            uses.append(self._best_use(batch, rate, draft, len(asking), uses))
        scoring = [draft for draft, use in zip(asking, uses, strict=True) if use == SCORE]
        generating = [draft for draft, use in zip(asking, uses, strict=True) if use not in (SCORE, None)]
        if not scoring and not generating:
            self.rest(batch.cost)
            return
        if scoring:
            self._score(batch, rate, scoring)
            scoring = [draft for draft in scoring if self._can_ask(draft)]
            for draft in scoring:
                if self._is_worth_generating(batch, rate, draft, len(scoring), bool(generating)):
                    generating.append(draft)
        going_on = generating
        while going_on:
            going_on = self._generate(batch, rate, going_on)
        for draft in generating:
            batch.cut_to_best(draft, rate)
            batch.release(draft)
        if asked.is_whole:
            self.cost(batch.cost).observe(asked.expected, asked.measured_ms)

    def cost(self, cost: CostModel) -> DraftCost:
        """What the model takes."""
        return cost.of_draft(self.model.name)

    def speedup(self, cost: CostModel, context: int, kind: Kind) -> float:
        """The speed that drafts of this model alone are expected to give after `context` tokens of a request of this
        kind, over that of plain decoding."""
        longest = min(LONGEST_GENERATED, self.model.depth or LONGEST_GENERATED)
        first, following = self.expected.of(kind)
        return speedup_of(cost, following, self.cost(cost), longest, context, first).ratio

    def rests(self, kind: Kind) -> bool:
        """Whether the model is left out of a whole answer of a kind, since considering it has not been worth its price
        lately."""
        made = [attempts for (of_kind, _), attempts in self._attempts.items() if of_kind == kind]
        is_given_up = bool(made) and all(attempts.is_given_up for attempts in made)
        return is_given_up and not self._trials.has_next(kind)

    def attempts(self, draft: Draft) -> Attempts:
        """The attempts with the model for requests of this draft's kind, where the text drafters are as sure as they
        are here."""
        return self._attempts[draft.kind, draft.is_sure]

    def rest(self, cost: CostModel) -> None:
        """Note that the model was not asked in a pass, so that less is known about it."""
        self._num_rests += 1
        if self._num_rests < RESTS:
            return
        self._num_rests = 0
        self.expected.forget(RESTS)
        self.cost(cost).forget(RESTS)

    def _can_ask(self, draft: Draft) -> bool:
        backoff = self._backoffs.get(draft.request)
        has_room = len(draft.proposals) < draft.limit and (backoff is None or not backoff.left)
        return has_room and self._drafters.can_ask(self.model, draft)

    def _asked(
        self,
        batch: Batch,
        ask: Callable[[ModelDrafter, Sequence[Draft]], Sequence[Answer | None]],
        drafts: Sequence[Draft],
        aheads: Sequence[Sequence[int]],
    ) -> Sequence[Answer | None]:
        """The draft model's answer for each draft, with the tokens in `aheads` after the request's own.

        Each draft is charged its share of the expected time, but all of them together no more than was reserved: this
        pass may have shown since then that the model is slower than was assumed.
        """
        cost, asked = self.cost(batch.cost), self._asked_now
        share = DraftTime(cost.pass_ms(len(drafts)) / len(drafts))
        shares = [share.plus(self._catching_up(cost, *each)) for each in zip(drafts, aheads, strict=True)]
        for each in shares:
            asked.expected = asked.expected.plus(each)
        expected_ms = sum(each.total_ms for each in shares)
        reserved_ms = sum(draft.reserved_ms for draft in drafts)
        for draft, each in zip(drafts, shares, strict=True):
            batch.release(draft)
            batch.charge(draft, each.total_ms * min(1.0, reserved_ms / expected_ms) if expected_ms else 0.0)
        began = self._drafters.model_s
        answers = ask(self.model, drafts)
        for draft, answer in zip(drafts, answers, strict=True):
            if answer is None:
                self._backoffs.setdefault(draft.request, _Backoff()).again()
            else:
                self._backoffs.pop(draft.request, None)
                self._begun.add(draft.request)
        asked.measured_ms += 1e3 * (self._drafters.model_s - began)
        asked.is_whole &= None not in answers
        return answers

    def _gain(self, batch: Batch, rate: float, draft: Draft) -> ExpectedGain:
        return ExpectedGain(
            batch.cost,
            self.cost(batch.cost),
            rate,
            self.expected.of(draft.kind),
            batch.python_row_ms,
            self.model.reads_ahead,
            self.model.depth,
            batch.last_rows,
        )

    def _best_use(
        self, batch: Batch, rate: float, draft: Draft, num_sharing: int, others: Sequence[str | None]
    ) -> str | None:
        """The use of the draft model with the highest gain, None where none pays; its time is reserved.

        Catching up is treated as an investment: gains missed in earlier passes because the model was not caught up are
        credited against its cost, if the text drafters had nothing sure there. This loses little whether the answer
        goes on or ends (ski rental; Karlin et al., Competitive snoopy caching, 1988). Missed gains and credits also
        count as gains for `attempts`, since a model that is rarely asked has more and more to catch up with.

        others: the uses for other drafts, which may share its passes.

        Prepares the draft: it is emptied if the model generates in its place; if the model scores it, it gets all that
        the text drafters offered, without rows in the batch.
        """
        gain, behind = self._gain(batch, rate, draft), self.model.num_behind(draft.request)
        length = len(draft.proposals)
        cost = self.cost(batch.cost)
        rows_ms, feeding = batch.draft_ms(draft), rate * cost.feeding_ms(behind - 1)

        def time_ms(use: str) -> float:
            """The time of catching up and of the first pass."""
            num_drafted = {GENERATE_BEHIND: length, GENERATE_INSTEAD: 0, SCORE: draft.num_scored}[use]
            is_shared = any(other is not None and (other == SCORE) == (use == SCORE) for other in others)
            return _share_ms(cost, is_shared) + gain.feeding_ms(behind, num_drafted)

        def of_generating(num_kept: int, rows: int, most_ms: float) -> float:
            return gain.of_generating(draft, num_kept, rows, gain.feeding_ms(behind, num_kept), num_sharing, most_ms)

        bare = batch.rows - length
        of_draft = gain.of_draft(draft, bare)
        can_replace = length > 0 and draft.request.config.mode == AUTO
        can_replace = can_replace and batch.can_afford(time_ms(GENERATE_INSTEAD) - rows_ms)
        uses: dict[str, float] = {}
        if can_replace:
            self._take_offers(draft)
            of_scoring, draft.num_scored = gain.of_scoring(draft, length, bare, behind, num_sharing)
            if batch.can_afford(time_ms(SCORE) - rows_ms):
                uses[SCORE] = of_scoring - of_draft
        missed = self._missed.get(draft.request, 0.0)
        for most_ms in (batch.sparing_ms, batch.remaining_ms):
            if batch.can_afford(time_ms(GENERATE_BEHIND)):
                uses[GENERATE_BEHIND] = of_generating(length, batch.rows, most_ms)
            if can_replace:
                uses[GENERATE_INSTEAD] = of_generating(0, bare, most_ms + rows_ms) - of_draft
            use = max(uses, key=lambda name: uses[name], default=None)
            if use is not None and uses[use] + min(missed, feeding) > 0:
                draft.may_take_all = most_ms == batch.remaining_ms
                break
        else:
            draft.credit = max(0.0, uses.get(use, 0.0) + feeding) if use is not None and not draft.is_sure else 0.0
            self._missed[draft.request] = missed + draft.credit
            draft.cut(length)
            return None
        draft.credit = min(self._missed.pop(draft.request, 0.0), feeding)
        offers = draft.proposals.copy()
        draft.cut(length)
        if use != GENERATE_BEHIND:
            batch.cut(draft, 0)
        if use == SCORE:
            draft.proposals = offers
        batch.reserve(draft, time_ms(use))
        return use

    def _take_offers(self, draft: Draft) -> None:
        """Lengthen a draft by what the text drafters offered beyond what pays."""
        for proposal in draft.offers[0][len(draft.proposals) :]:
            probability = draft.probability * self._probability(draft, proposal)
            if probability < LEAST_SCORED:
                return
            draft.take(proposal, probability)

    def _score(self, batch: Batch, rate: float, drafts: Sequence[Draft]) -> None:
        """Have drafts scored, and keep of each what is likely to be accepted now."""
        aheads = [draft.tokens[: draft.num_scored] for draft in drafts]
        for draft, scores in zip(drafts, self._asked(batch, self._drafters.score, drafts, aheads), strict=True):
            unscored = draft.proposals.copy()
            draft.cut(0)
            draft.offers.append(scored := [])
            is_mended = False
            for proposal, score in zip_longest(unscored, (scores or ())[: draft.num_scored]):
                better = proposal
                if score is not None:
                    better = self._better(draft, proposal, score)
                scored.append(better)
                if not batch.take(draft, better, draft.probability * self._probability(draft, better), rate):
                    break
                if is_mended := better.token != proposal.token:
                    break
            if is_mended:
                # The text drafters continue after the mended token.
                for proposal, probability in self._drafters.surest(draft):
                    if not batch.take(draft, proposal, draft.probability * probability, rate):
                        break
            batch.cut_to_best_sparing(draft, rate)

    def _probability(self, draft: Draft, proposal: Proposal) -> float:
        return self._acceptance.probability(proposal.features, draft.conditions)

    def _better(self, draft: Draft, proposal: Proposal, score: Score) -> Proposal:
        """The likelier of a text drafter's proposal and the draft model's own, with features that tell of both."""
        odds, own = self._acceptance.log_odds(proposal.features, draft.conditions) / 2, score.proposal
        kind = "" if draft.request.config.greedy else " sampled"
        if own.token == proposal.token:
            return proposal._replace(features=Features(f"agreed{kind}", (odds, score.log_odds / 2)))
        doubted = proposal._replace(features=Features(f"doubted{kind}", (odds, score.log_odds / 2)))
        mended = own._replace(features=Features(f"mended{kind}", (odds, own.features.values[0])))
        return self._acceptance.likeliest((doubted, mended), draft.conditions)[0]

    def _is_worth_generating(self, batch: Batch, rate: float, draft: Draft, num_sharing: int, is_shared: bool) -> bool:
        """Whether the model is to generate after a draft, of which it may have scored a part. Its time is reserved."""
        cost = self.cost(batch.cost)
        feeding_ms = self._catching_up(cost, draft, draft.tokens).total_ms
        price_ms = feeding_ms + _share_ms(cost, is_shared)
        most_ms = batch.remaining_ms if draft.may_take_all else batch.sparing_ms
        gain = self._gain(batch, rate, draft).of_generating(
            draft, len(draft.proposals), batch.rows, feeding_ms, num_sharing, most_ms, self._goes_on(draft)
        )
        if gain <= 0 or not batch.can_take(draft, batch.row_ms(draft) + price_ms):
            return False
        batch.reserve(draft, price_ms)
        return True

    def _generate(self, batch: Batch, rate: float, drafts: Sequence[Draft]) -> list[Draft]:
        """Have the draft model generate one token after each draft; returns the drafts that are worth another one."""
        proposals = self._asked(batch, self._drafters.generated, drafts, [draft.tokens for draft in drafts])
        goes_on: list[Draft] = []
        # Drawn proposals come first, so that no other proposal decides whether there is room for them.
        pairs = sorted(zip(drafts, proposals, strict=True), key=lambda each: each[1] is None or not each[1].drawn_from)
        for draft, proposal in pairs:
            if proposal is None:
                continue
            probability = self._probability(draft, proposal)
            self.expected.observe(draft.kind, probability, is_first=not self._goes_on(draft))
            draft.offers.append([*draft.proposals, proposal])
            is_taken = batch.take(draft, proposal, draft.probability * probability, rate)
            if is_taken and self._is_worth_generating(batch, rate, draft, len(drafts), bool(goes_on)):
                goes_on.append(draft)
        return goes_on

    def _goes_on(self, draft: Draft) -> bool:
        """Whether the model wrote the last token of a draft."""
        return bool(draft.proposals) and draft.proposals[-1].source == self.model.name

    def _catching_up(self, cost: DraftCost, draft: Draft, ahead: Sequence[int]) -> DraftTime:
        """The time that the model takes to catch up with a request and the tokens ahead of it, and to begin."""
        num_behind = self.model.num_behind(draft.request, ahead)
        begin_ms = 0.0 if draft.request in self._begun else cost.beginning_ms()
        if self.model.reads_ahead:
            return DraftTime(0.0, cost.feeding_ms(num_behind - 1), begin_ms)
        num_read = self.model.num_behind(draft.request)
        return DraftTime((num_behind - num_read) * cost.pass_ms(1), cost.feeding_ms(num_read - 1), begin_ms)


def best_first(
    policies: Sequence[DraftModelPolicy], cost: CostModel, context: int, kind: Kind
) -> list[DraftModelPolicy]:
    """Policies, the one with the highest expected speedup first."""
    return sorted(policies, key=lambda policy: -policy.speedup(cost, context, kind))


def _share_ms(cost: DraftCost, is_shared: bool) -> float:
    """What one more request adds to the model's time for a pass."""
    return cost.row_ms if is_shared else cost.pass_ms(1)
