"""Planner: who drafts for which sequence, and how many tokens."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import islice

from .calibration import Calibration
from .config import AUTO
from .cost import CostModel
from .drafters.base import ModelDrafter, Proposal
from .drafting import Drafting
from .sequence import Sequence
from .turn import Turn

LONGEST = 32  # tokens of a draft
REMEMBER = 0.9  # weight of the passes so far in the rate of late
HORIZON = 16  # passes over which the draft model's catching up is expected to pay
TOLERANCE = 0.015  # share of the time of plain decoding that an answer may lose to drafts that failed
FORGET = 0.05  # weight of the newest proposal in what is expected of a model's next one
RECOVER = 0.0005  # how fast that goes back to even odds while the model is not asked

@dataclass(slots=True)
class _Account:
    """Of one answer, in milliseconds: what plain decoding would have taken, and what drafting took beyond it."""

    plain_ms: float = 0.0
    lost_ms: float = 0.0

    def in_debt(self, allowance_ms: float) -> bool:
        return self.lost_ms > TOLERANCE * self.plain_ms + allowance_ms


class Planner:
    """Drafts as a request's mode says: each mode is a chain of drafters, one going on where the other ends.

    Where `num_assistant_tokens` is given, so many tokens are drafted. Otherwise as many as pay. A draft of estimates
    a1, a2, ... brings a1 + a1 a2 + ... tokens; one more is worth drafting while the probability that it stands exceeds
    the time that it adds times `rate`, the tokens per millisecond achieved of late: by the renewal-reward theorem that
    makes the most tokens per time. All sequences share one pass, so the tokens that are likeliest to stand come first,
    whoever's they are, and a pass that is full leaves no room for doubtful ones. A drafter that runs a model is asked
    where its time, too, is expected to pay, in mode "auto" also in place of what the others found.

    A ledger bounds the loss: while an answer has taken more than TOLERANCE longer than plain decoding would have, only
    rows that cost nothing are drafted for it. Times are those that `cost` predicts, so noise does not enter.
    """

    def __init__(self, drafting: Drafting, calibration: Calibration, cost: CostModel | None = None) -> None:
        self.cost = cost  # without it, nothing is drafted where nobody says how many tokens
        self._calibration = calibration
        self._drafting = drafting
        self._accounts: dict[Sequence, _Account] = {}
        self._expected = 0.5  # that the draft model's next proposal stands
        self._tokens = self._time_ms = 0.0

    @property
    def model_s(self) -> float:
        """Seconds that the draft model has taken, all in all."""
        return self._drafting.model_s

    @property
    def rate(self) -> float:
        """Tokens per millisecond of late, all sequences together."""
        return self._tokens / self._time_ms

    def draft(self, turns: SequenceOf[Turn], other_rows: int = 0) -> None:
        """Fill the draft of each turn. `other_rows` of the same pass are prompts that are being read."""
        planned = []
        for turn in turns:
            length = turn.sequence.config.num_assistant_tokens
            if length is None:
                planned.append(turn)
            else:
                for proposal in islice(self._drafting.chained(turn), min(turn.limit, length)):
                    turn.take(proposal, turn.survival * self._calibration.estimate(proposal.evidence))
        if planned and self.cost is not None:
            if not self._time_ms:
                self._tokens, self._time_ms = 1.0, self.cost.pass_ms([(1, planned[0].context)])
            rows = other_rows + sum(max(turn.rows, self.cost.least_rows) for turn in turns)
            rows = self._draft_from_text(self.cost, planned, rows)
            if self._drafting.model is not None:
                self._draft_from_model(self.cost, self._drafting.model, planned, rows)

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
        self._tokens = REMEMBER * self._tokens + sum(map(len, kept))
        self._time_ms = REMEMBER * self._time_ms + spent_ms
        num_drafted = sum(len(turn.draft) for turn in turns)
        for turn, tokens in zip(turns, kept, strict=True):
            account = self._accounts.setdefault(turn.sequence, _Account())
            share = len(turn.draft) / num_drafted if num_drafted else 1 / len(turns)
            account.plain_ms += len(tokens) * plain_ms / len(turns)
            account.lost_ms += share * (spent_ms - plain_ms) - (len(tokens) - 1) * plain_ms / len(turns)

    def release(self, sequence: Sequence) -> None:
        """Forget a finished sequence."""
        self._accounts.pop(sequence, None)
        self._drafting.release(sequence)

    def _draft_from_text(self, cost: CostModel, turns: SequenceOf[Turn], rows: int) -> int:
        """Take what the texts themselves offer, the surest first, as far as it pays; returns the rows of the pass."""
        offers = [self._drafting.surest(turn) for turn in turns]
        in_debt = [self._in_debt(cost, turn) for turn in turns]
        queue: list[tuple[float, int, float, Proposal]] = []
        taken: list[int] = []
        worth = best_worth = 0.0
        best_length, best_rows = 0, rows

        def offer(i: int) -> None:
            proposal = None if turns[i].is_full else next(offers[i], None)
            if proposal is not None:
                survival = turns[i].survival * self._calibration.estimate(proposal.evidence)
                is_free = turns[i].rows < cost.least_rows  # the row is in the pass anyway
                heapq.heappush(queue, (-survival - is_free, i, survival, proposal))

        for i in range(len(turns)):
            offer(i)
        while queue:
            _, i, survival, proposal = heapq.heappop(queue)
            price = cost.row_ms(rows, turns[i].rows, turns[i].context)
            if price and (in_debt[i] or survival < self.rate * cost.least_row_ms):
                continue
            rows += turns[i].rows >= cost.least_rows
            turns[i].take(proposal, survival)
            taken.append(i)
            worth += survival - self.rate * price
            if worth >= best_worth:
                best_worth, best_length, best_rows = worth, len(taken), rows
            offer(i)
        for i in taken[best_length:]:
            turns[i].cut(len(turns[i].draft) - 1)
        return best_rows

    def _draft_from_model(self, cost: CostModel, model: ModelDrafter, turns: SequenceOf[Turn], rows: int) -> None:
        """Let the draft model write on behind drafts, or in their place, where that is expected to bring more."""
        asking = [turn for turn in turns if self._drafting.chain(turn).model and not turn.is_full]
        asking = [turn for turn in asking if not self._in_debt(cost, turn)]
        writing = []
        for turn in asking:
            rows, is_worth = self._make_way(cost, model, turn, rows, len(asking))
            if is_worth:
                writing.append(turn)
        if not writing:
            self._expect(0.5, RECOVER)
            return
        expected_ms = cost.draft_row_ms * sum(model.num_behind(t.sequence) - 1 + len(t.draft) for t in writing)
        began = self._drafting.model_s
        for turn in writing:
            turn.draft_ms = self._catching_up_ms(cost, model, turn, len(turn.draft))
        while writing:
            draft_ms = cost.draft_pass_ms(len(writing)) / len(writing)
            expected_ms += cost.draft_pass_ms(len(writing))
            goes_on = []
            for turn, proposal in zip(writing, self._drafting.written(writing), strict=True):
                turn.draft_ms += draft_ms
                if proposal is None:
                    continue
                estimate = self._calibration.estimate(proposal.evidence)
                self._expect(estimate, FORGET)
                survival = turn.survival * estimate
                if survival < self.rate * cost.row_ms(rows, turn.rows, turn.context):
                    continue
                rows += turn.rows >= cost.least_rows
                turn.take(proposal, survival)
                price = cost.row_ms(rows, turn.rows, turn.context) + draft_ms
                if not turn.is_full and survival * self._expected >= self.rate * price:
                    goes_on.append(turn)
            writing = goes_on
        cost.observe_draft(expected_ms, 1e3 * (self._drafting.model_s - began))

    def _make_way(
        self, cost: CostModel, model: ModelDrafter, turn: Turn, rows: int, num_sharing: int
    ) -> tuple[int, bool]:
        """Whether the model should write for a turn, behind its draft or, in mode "auto", in place of it, which is then
        dropped; with the rows of the pass."""
        behind = self._worth_of_model(cost, model, turn, len(turn.draft), rows, num_sharing)
        alone, others = -1.0, rows - max(turn.rows, cost.least_rows) + cost.least_rows
        if turn.draft and turn.sequence.config.mode == AUTO:
            alone = self._worth_of_model(cost, model, turn, 0, others, num_sharing) - self._worth(cost, turn, others)
        if max(behind, alone) <= 0:
            return rows, False
        if alone > behind:
            turn.cut(0)
            return others, True
        return rows, True

    def _worth(self, cost: CostModel, turn: Turn, rows: int) -> float:
        """Tokens that a draft is expected to bring beyond what its rows are worth; `rows` is the pass without it."""
        worth = 0.0
        for length, survival in enumerate(turn.survivals, 1):
            worth += survival - self.rate * cost.row_ms(rows, length, turn.context)
            rows += length >= cost.least_rows
        return worth

    def _worth_of_model(
        self, cost: CostModel, model: ModelDrafter, turn: Turn, length: int, rows: int, num_sharing: int
    ) -> float:
        """The same for what `model` would write behind the first `length` tokens of the draft, with its time, where
        `num_sharing` turns share its passes."""
        draft_ms = cost.draft_pass_ms(num_sharing) / num_sharing
        survival = turn.survivals[length - 1] if length else 1.0
        worth = -self.rate * self._catching_up_ms(cost, model, turn, length)
        best = worth
        for window in range(1 + length, 1 + turn.limit):
            survival *= self._expected
            worth += survival - self.rate * (cost.row_ms(rows, window, turn.context) + draft_ms)
            rows += window >= cost.least_rows
            best = max(best, worth)
        return best

    def _catching_up_ms(self, cost: CostModel, model: ModelDrafter, turn: Turn, length: int) -> float:
        """The time of feeding a model what it missed, spread over the passes that profit, and the draft before it."""
        return cost.draft_row_ms * ((model.num_behind(turn.sequence) - 1) / HORIZON + length)

    def _expect(self, estimate: float, weight: float) -> None:
        self._expected += weight * (estimate - self._expected)

    def _in_debt(self, cost: CostModel, turn: Turn) -> bool:
        account = self._accounts.get(turn.sequence)
        return account is not None and account.in_debt(cost.pass_ms([(1, turn.context)]) / 2)
