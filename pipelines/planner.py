"""Planner: who drafts for which sequence, and how many tokens."""

from __future__ import annotations

import heapq
import logging
import operator
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import islice

from .calibration import Calibration
from .config import AUTO
from .cost import CostModel
from .drafters.base import Drafter, Proposal
from .sequence import Sequence
from .turn import Turn

LONGEST = 32  # tokens of a draft
REMEMBER = 0.9  # weight of the passes so far in the rate of late
HORIZON = 16  # passes over which the draft model's catching up is expected to pay
TOLERANCE = 0.015  # share of the time of plain decoding that an answer may lose to drafts that failed
FORGET = 0.05  # weight of the newest proposal in what is expected of a model's next one
RECOVER = 0.0005  # how fast that goes back to even odds while the model is not asked

log = logging.getLogger(__name__)


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

    def __init__(
        self,
        modes: Mapping[str, SequenceOf[Drafter]],
        calibration: Calibration,
        vocabulary_size: int,
        cost: CostModel | None = None,
    ) -> None:
        self.modes = modes
        self.cost = cost  # without it, nothing is drafted where nobody says how many tokens
        self.draft_s = 0.0  # that drafters which run a model have taken, all in all
        self._calibration = calibration
        self._vocabulary_size = vocabulary_size
        self._accounts: dict[Sequence, _Account] = {}
        self._expected: dict[str, float] = {}  # of a model's next proposal, by its name: that it stands
        self._tokens = self._time_ms = 0.0

    @property
    def rate(self) -> float:
        """Tokens per millisecond of late, all sequences together."""
        return self._tokens / self._time_ms

    def draft(self, turns: SequenceOf[Turn], other_rows: int = 0) -> None:
        """Fill the draft of each turn. `other_rows` of the same pass are prompts that are being read."""
        planned = []
        for turn in turns:
            if turn.sequence.config.num_assistant_tokens is None:
                planned.append(turn)
            else:
                length = min(turn.limit, turn.sequence.config.num_assistant_tokens)
                for proposal in islice(self._chain(turn, self._drafters(turn)), length):
                    turn.take(proposal, turn.survival * self._calibration.estimate(proposal.evidence))
        if planned and self.cost is not None:
            if not self._time_ms:
                self._tokens, self._time_ms = 1.0, self.cost.pass_ms([(1, planned[0].context)])
            rows = other_rows + sum(max(turn.rows, self.cost.least_rows) for turn in turns)
            rows = self._draft_from_text(self.cost, planned, rows)
            for turn in planned:
                rows = self._draft_from_model(self.cost, turn, rows)

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
        for drafter in {id(drafter): drafter for chain in self.modes.values() for drafter in chain}.values():
            drafter.release(sequence)

    def _drafters(self, turn: Turn) -> SequenceOf[Drafter]:
        return self.modes[turn.sequence.config.mode]

    def _draft_from_text(self, cost: CostModel, turns: SequenceOf[Turn], rows: int) -> int:
        """Take what the texts themselves offer, the surest first, as far as it pays; returns the rows of the pass."""
        offers = [self._surest(t, [d for d in self._drafters(t) if not d.num_behind(t.sequence)]) for t in turns]
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

    def _draft_from_model(self, cost: CostModel, turn: Turn, rows: int) -> int:
        """Let the draft model write on behind the draft, or in its place, where that is expected to bring more."""
        model = next((d for d in self._drafters(turn) if d.num_behind(turn.sequence)), None)
        if model is None or turn.is_full or self._in_debt(cost, turn):
            return rows
        behind = self._worth_of_model(cost, model, turn, len(turn.draft), rows)
        others = rows - max(turn.rows, cost.least_rows) + cost.least_rows
        alone = -1.0
        if turn.draft and turn.sequence.config.mode == AUTO:
            alone = self._worth_of_model(cost, model, turn, 0, others) - self._worth(cost, turn, others)
        if max(behind, alone) <= 0:
            self._expect(model, 0.5, RECOVER)
            return rows
        if alone > behind:
            turn.cut(0)
            rows = others
        turn.draft_ms = self._catching_up_ms(cost, model, turn, len(turn.draft))
        expected_ms = cost.draft_row_ms * (model.num_behind(turn.sequence) - 1 + len(turn.draft))
        began = self.draft_s
        for proposal in self._proposals(model, turn.sequence, turn.tokens):
            turn.draft_ms += cost.draft_ms
            expected_ms += cost.draft_ms
            estimate = self._calibration.estimate(proposal.evidence)
            self._expect(model, estimate, FORGET)
            survival = turn.survival * estimate
            price = cost.row_ms(rows, turn.rows, turn.context)
            if survival < self.rate * price:
                break
            rows += turn.rows >= cost.least_rows
            turn.take(proposal, survival)
            price = cost.row_ms(rows, turn.rows, turn.context) + cost.draft_ms
            if turn.is_full or survival * self._expected[model.name] < self.rate * price:
                break
        cost.observe_draft(expected_ms, 1e3 * (self.draft_s - began))
        return rows

    def _worth(self, cost: CostModel, turn: Turn, rows: int) -> float:
        """Tokens that a draft is expected to bring beyond what its rows are worth; `rows` is the pass without it."""
        worth = 0.0
        for length, survival in enumerate(turn.survivals, 1):
            worth += survival - self.rate * cost.row_ms(rows, length, turn.context)
            rows += length >= cost.least_rows
        return worth

    def _worth_of_model(self, cost: CostModel, model: Drafter, turn: Turn, length: int, rows: int) -> float:
        """The same for what `model` would write behind the first `length` tokens of the draft, its time included."""
        typical = self._expected.get(model.name, 0.5)
        survival = turn.survivals[length - 1] if length else 1.0
        worth = -self.rate * self._catching_up_ms(cost, model, turn, length)
        best = worth
        for window in range(1 + length, 1 + turn.limit):
            survival *= typical
            worth += survival - self.rate * (cost.row_ms(rows, window, turn.context) + cost.draft_ms)
            rows += window >= cost.least_rows
            best = max(best, worth)
        return best

    def _catching_up_ms(self, cost: CostModel, model: Drafter, turn: Turn, length: int) -> float:
        """The time of feeding a model what it missed, spread over the passes that profit, and the draft before it."""
        return cost.draft_row_ms * ((model.num_behind(turn.sequence) - 1) / HORIZON + length)

    def _expect(self, model: Drafter, estimate: float, weight: float) -> None:
        before = self._expected.get(model.name, 0.5)
        self._expected[model.name] = before + weight * (estimate - before)

    def _in_debt(self, cost: CostModel, turn: Turn) -> bool:
        account = self._accounts.get(turn.sequence)
        return account is not None and account.in_debt(cost.pass_ms([(1, turn.context)]) / 2)

    def _chain(self, turn: Turn, drafters: SequenceOf[Drafter]) -> Iterator[Proposal]:
        ahead: list[int] = []
        for drafter in drafters:
            for proposal in self._proposals(drafter, turn.sequence, tuple(ahead)):
                yield proposal
                ahead.append(proposal.token)

    def _surest(self, turn: Turn, drafters: SequenceOf[Drafter]) -> Iterator[Proposal]:
        """Token by token, the proposal that is held likeliest of those that several drafters have."""
        ahead: list[int] = []
        running = [self._proposals(drafter, turn.sequence, ()) for drafter in drafters]
        while True:
            found = [next(proposals, None) for proposals in running]
            offered = [proposal for proposal in found if proposal is not None]
            if not offered:
                return
            best = max(offered, key=lambda proposal: self._calibration.estimate(proposal.evidence))
            yield best
            ahead.append(best.token)
            for i, proposal in enumerate(found):
                if len(found) > 1 and (proposal is None or proposal.token != best.token):
                    running[i] = self._proposals(drafters[i], turn.sequence, tuple(ahead))

    def _proposals(self, drafter: Drafter, sequence: Sequence, ahead: SequenceOf[int]) -> Iterator[Proposal]:
        """What a drafter proposes. It can only cost speed: one that fails is left out for the rest of the answer."""
        if sequence.drafting_failed:
            return
        runs_model = drafter.num_behind(sequence) > 0
        try:
            proposals = drafter.propose(sequence, ahead)
            while True:
                began = time.perf_counter()
                proposal = next(proposals, None)
                if runs_model:
                    self.draft_s += time.perf_counter() - began
                if proposal is None:
                    return
                if not 0 <= operator.index(proposal.token) < self._vocabulary_size:
                    raise ValueError(f"{proposal} is not of the target's vocabulary")
                yield proposal
        except Exception:
            log.warning("The drafter %s failed; this answer goes on without it.", drafter.name, exc_info=True)
            sequence.drafting_failed = True
