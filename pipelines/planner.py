"""Planner: who drafts for which sequence, and how many tokens."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import islice

from .calibration import Calibration
from .consultant import Consultant
from .cost import CostModel
from .drafters.base import Proposal
from .drafting import Drafting
from .paged_model import PREFILL_ROWS
from .sequence import Sequence
from .turn import Pass, Turn

LONGEST = 32  # tokens of a draft
REMEMBER = 0.9  # weight of the passes so far in the rate of late
LONGEST_WRITTEN = 8  # tokens that the draft model is expected to write at a time, at most
TOLERANCE = 0.02  # share of the time of plain decoding that an answer may lose to drafting
ALLOWANCE = 3  # passes that it may lose besides, since luck must be given time to even out
STAKE = 1 / 3  # share of what it may still lose that the rows of one draft may take


@dataclass(frozen=True, slots=True)
class _Step:
    """One more token of a draft: the odds that it is reached and stands, and its price."""

    turn: Turn
    survival: float
    price_ms: float


@dataclass(slots=True)
class _Account:
    """Of one answer, in milliseconds: what plain decoding would have taken, and what drafting took beyond it."""

    plain_ms: float = 0.0
    lost_ms: float = 0.0

    def spare_ms(self, pass_ms: float) -> float:
        """What it may still lose."""
        return max(0.0, TOLERANCE * self.plain_ms + ALLOWANCE * pass_ms - self.lost_ms)


@dataclass(slots=True)
class _Pace:
    """Of late, all sequences of a pass together."""

    tokens: float = 0.0
    time_ms: float = 0.0

    def add(self, tokens: int, time_ms: float) -> None:
        self.tokens = REMEMBER * self.tokens + tokens
        self.time_ms = REMEMBER * self.time_ms + time_ms

    @property
    def rate(self) -> float:
        """Tokens per millisecond; 0 where nothing is known."""
        return self.tokens / self.time_ms if self.time_ms else 0.0


class Planner:
    """Drafts as a request's mode says: each mode is a chain of drafters, one going on where the other ends.

    Where `num_assistant_tokens` is given, so many tokens are drafted. Otherwise as many as pay. A draft of estimates
    a1, a2, ... brings a1 + a1 a2 + ... tokens; one more is worth drafting while the probability that it stands exceeds
    the time that it adds times `rate`, the tokens that a millisecond is worth. By the renewal-reward theorem that is
    the rate of the best policy in the long run; as texts change between copying and writing, it is taken midway
    between the rate of late, in the same modes, and the most that this pass can be expected to give. All sequences
    share one pass, so the tokens that are likeliest to stand come first, whoever's they are, and a full pass leaves no
    room for doubtful ones.

    The draft model is asked where its time, too, is expected to pay: to write behind what the texts offer, and in mode
    "auto" also to write in its place, or to read it: one pass tells for each token whether the model would write it
    too, and what instead (a cascade, as in Chen et al., arXiv 2312.11462).

    A ledger bounds the loss: no answer takes more than TOLERANCE and ALLOWANCE passes longer than plain decoding would,
    whatever fails. What reading the prompt took allows nothing, else a short answer behind a long prompt could take
    twice its time. The rows of a draft may take the share STAKE of what is left, so that one bad guess does not end all
    drafting; what stands is credited, and the drafts of an answer that goes well soon grow as long as they pay. Times
    are those that `cost` predicts, so noise does not enter.
    """

    def __init__(self, drafting: Drafting, calibration: Calibration, cost: CostModel | None = None) -> None:
        self.cost = cost  # without it, nothing is drafted where nobody says how many tokens
        self._calibration = calibration
        self._drafting = drafting
        self._accounts: dict[Sequence, _Account] = {}
        self._consultant = Consultant(drafting, calibration)
        self._paces: dict[frozenset[str], _Pace] = {}  # by the modes of a pass: each has a rate of its own
        self.rate = 0.0  # what a millisecond is worth in the coming pass, in tokens

    @property
    def model_s(self) -> float:
        """Seconds that the draft model has taken, all in all."""
        return self._drafting.model_s

    def draft(self, turns: SequenceOf[Turn], other_rows: int = 0, most_rows: int = PREFILL_ROWS) -> None:
        """Fill the draft of each turn. `other_rows` of the same pass are prompts that are being read; with all drafts
        it has at most `most_rows`."""
        planned = []
        for turn in turns:
            length = turn.sequence.config.num_assistant_tokens
            if length is None:
                planned.append(turn)
            else:
                for proposal in islice(self._drafting.chained(turn), min(turn.limit, length)):
                    turn.take(proposal, turn.survival * self._calibration.estimate(proposal.evidence))
        if planned and self.cost is not None:
            self._plan(self.cost, planned, other_rows)
        room = most_rows - other_rows - len(turns)
        for turn in turns:
            turn.cut(room)
            room -= len(turn.draft)

    def _plan(self, cost: CostModel, turns: SequenceOf[Turn], other_rows: int) -> None:
        for turn in turns:
            turn.spare_ms = self._account(turn).spare_ms(cost.pass_ms([(1, turn.context)]))
            turn.stake_ms = STAKE * turn.spare_ms
        coming = Pass(cost, other_rows + len(turns))
        self._draft_from_text(coming, turns)
        if self._drafting.model is not None:
            self._consultant.consult(coming, self.rate, turns)
        coming.balance(turns)

    def observe(self, turns: SequenceOf[Turn], kept: SequenceOf[SequenceOf[int]], target_ms: float | None) -> None:
        """Learn from a pass: what each turn's sequence kept, and the target's time, where nothing else was in it."""
        for turn, tokens in zip(turns, kept, strict=True):
            for proposal, token in zip(turn.draft, tokens, strict=False):
                self._calibration.observe(proposal.evidence, proposal.token == token)
        if self.cost is None or not turns:
            return
        if target_ms is not None:
            self.cost.observe([(turn.rows, turn.context) for turn in turns], target_ms)
        plain_ms = self.cost.pass_ms([(1, turn.context) for turn in turns])
        spent_ms = self.cost.pass_ms([(turn.rows, turn.context) for turn in turns])
        spent_ms += sum(turn.draft_ms for turn in turns)
        self._pace(turns).add(sum(map(len, kept)), spent_ms)
        for turn, tokens in zip(turns, kept, strict=True):
            account = self._account(turn)
            account.plain_ms += len(tokens) * plain_ms / len(turns)
            account.lost_ms += turn.spent_ms - (len(tokens) - 1) * plain_ms / len(turns)

    def release(self, sequence: Sequence) -> None:
        """Forget a finished sequence."""
        self._accounts.pop(sequence, None)
        self._consultant.release(sequence)
        self._drafting.release(sequence)

    def _draft_from_text(self, coming: Pass, turns: SequenceOf[Turn]) -> None:
        """Take what the texts themselves offer, the surest first, as far as it pays."""
        bare = coming.rows
        steps = self._take_surest(coming, turns)
        late = max(self._pace(turns).rate, self._plain_rate(coming.cost, turns))  # plain decoding is there in any case
        self.rate = math.sqrt(late * self._rate_at_best(coming.cost, turns, steps, bare))
        worth = best_worth = 0.0
        best_length = 0
        for length, step in enumerate(steps, 1):
            worth += step.survival - self.rate * step.price_ms
            if worth >= best_worth:
                best_worth, best_length = worth, length
        for step in steps[best_length:]:
            coming.cut(step.turn, len(step.turn.draft) - 1)

    def _take_surest(self, coming: Pass, turns: SequenceOf[Turn]) -> list[_Step]:
        """Fill the drafts with what might pay at the rate of plain decoding, in the order in which it is likely."""
        offers = [self._drafting.surest(turn) for turn in turns]
        least = self._plain_rate(coming.cost, turns) * coming.cost.least_row_ms
        queue: list[tuple[float, int, Proposal]] = []
        steps: list[_Step] = []

        def offer(i: int) -> None:
            proposal = None if turns[i].is_full else next(offers[i], None)
            if proposal is not None:
                survival = turns[i].survival * self._calibration.estimate(proposal.evidence)
                heapq.heappush(queue, (-survival, i, proposal))

        for i in range(len(turns)):
            offer(i)
        while queue:
            negative, i, proposal = heapq.heappop(queue)
            survival = -negative
            price_ms = coming.row_ms(turns[i])
            if price_ms and (survival < least or not turns[i].can_stake(price_ms)):
                continue
            steps.append(_Step(turns[i], survival, price_ms))
            coming.take(turns[i], proposal, survival, price_ms)
            offer(i)
        return steps

    def _pace(self, turns: SequenceOf[Turn]) -> _Pace:
        return self._paces.setdefault(frozenset(turn.sequence.config.mode for turn in turns), _Pace())

    def _plain_rate(self, cost: CostModel, turns: SequenceOf[Turn]) -> float:
        return len(turns) / cost.pass_ms([(1, turn.context) for turn in turns])

    def _rate_at_best(self, cost: CostModel, turns: SequenceOf[Turn], steps: SequenceOf[_Step], rows: int) -> float:
        """The most tokens per millisecond that this pass can be expected to give, with the texts or the draft model."""
        tokens, time_ms = float(len(turns)), len(turns) / self._plain_rate(cost, turns)
        best, plain_tokens, plain_ms = tokens / time_ms, tokens, time_ms
        for step in steps:
            tokens, time_ms = tokens + step.survival, time_ms + step.price_ms
            best = max(best, tokens / time_ms)
        sharing = [turn for turn in turns if self._drafting.chain(turn).model]
        tokens, time_ms, survival = plain_tokens, plain_ms, 1.0
        for window in range(1, 1 + LONGEST_WRITTEN if sharing else 1):
            survival *= self._consultant.expected
            tokens += len(sharing) * survival
            time_ms += cost.draft_pass_ms(len(sharing))
            for turn in sharing:
                time_ms += cost.row_ms(rows, window, turn.context)
                rows += 1
            best = max(best, tokens / time_ms)
        return best

    def _account(self, turn: Turn) -> _Account:
        return self._accounts.setdefault(turn.sequence, _Account())
