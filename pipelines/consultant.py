"""Consultant: when the draft model is asked, and for what."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from itertools import zip_longest

from .calibration import Calibration, Evidence
from .config import AUTO
from .cost import CostModel
from .drafters.base import Opinion, Proposal
from .drafting import Drafting
from .sequence import Sequence
from .turn import Turn
from .worth import Worth

LEAST_READ = 0.1  # a draft is read as far as it is that likely to stand
FORGET = 0.05  # weight of the newest proposal in what is expected of a model's next one
RECOVER = 0.0005  # how fast that goes back to even odds while the model is not asked

READ, WRITE_BEHIND, WRITE_INSTEAD = "read", "write behind", "write instead"

# Weights of what is thought of a text's proposal when the draft model has read it, bias first, to begin with. The
# features are half the log-odds of both: for a token on which they agree; for the text's where the model would write
# another; for the model's, with the odds of the text's token.
PRIORS = {
    "agreed": (1.7, 0.7, 0.85), "doubted": (0.0, 0.6, 0.55), "mended": (0.0, -0.55, 1.05),
    "agreed sampled": (0.85, 0.9, 0.8), "doubted sampled": (-0.6, 0.7, 0.7), "mended sampled": (-0.3, -0.75, 1.1),
}  # fmt: skip


class Consultant:
    """Lets the draft model read and mend what the texts offer, or write behind it or in its place (see `Planner`).

    expected: the probability that its next proposal stands, as far as can be told before it is asked.
    """

    def __init__(self, drafting: Drafting, calibration: Calibration) -> None:
        self._drafting = drafting
        self._calibration = calibration
        self.expected = 0.5
        self._without_room: set[Sequence] = set()  # for which the model's cache or context has no room any more

    def release(self, sequence: Sequence) -> None:
        """Forget a finished sequence."""
        self._without_room.discard(sequence)

    def consult(self, cost: CostModel, rate: float, turns: SequenceOf[Turn], rows: int) -> None:
        """Let the draft model read drafts, or write behind them or in their place, where that is expected to pay.

        `rate` is what a millisecond is worth, in tokens; `rows` are those of the pass so far.
        """
        asking = [turn for turn in turns if self._drafting.chain(turn).model and not turn.sequence.drafting_failed]
        asking = [turn for turn in asking if not turn.is_full and turn.sequence not in self._without_room]
        if not asking:
            return
        reading: list[Turn] = []
        writing: list[Turn] = []
        for turn in asking:
            before = max(turn.rows, cost.least_rows)
            if (use := self._best_use(self._worth(cost, rate), turn, rows, len(asking))) is not None:
                (reading if use == READ else writing).append(turn)
                rows += max(turn.rows, cost.least_rows) - before
        if not reading and not writing:
            self._expect(0.5, RECOVER)
        if reading:
            rows = self._read(self._worth(cost, rate), reading, rows)
            worth = self._worth(cost, rate)
            reading = [turn for turn in reading if turn.sequence not in self._without_room]
            writing += [turn for turn in reading if self._is_worth_writing(worth, turn, rows, len(reading))]
        self._write(self._worth(cost, rate), writing, rows)

    def _worth(self, cost: CostModel, rate: float) -> Worth:
        return Worth(cost, rate, self.expected)

    def _best_use(self, worth: Worth, turn: Turn, rows: int, num_sharing: int) -> str | None:
        """What the draft model is worth most for, if it is worth its time. The draft is made ready for that: dropped
        where the model is to write in its place, and as long as the texts offer where it is to be read."""
        behind, least_rows = self._drafting.num_behind(turn), worth.cost.least_rows
        bare = rows - max(turn.rows, least_rows) + least_rows
        length, mine = len(turn.draft), worth.of_draft(turn, bare)
        uses = {WRITE_BEHIND: worth.of_writing(turn, length, rows, behind, num_sharing)}
        if length and turn.sequence.config.mode == AUTO:
            uses[WRITE_INSTEAD] = worth.of_writing(turn, 0, bare, behind, num_sharing) - mine
            self._take_all_offers(turn)
            uses[READ] = worth.of_reading(turn, length, bare, behind, num_sharing) - mine
        use = max(uses, key=lambda name: uses[name])
        if uses[use] <= 0:
            turn.cut(length)
            return None
        turn.cut({WRITE_BEHIND: length, WRITE_INSTEAD: 0, READ: turn.limit}[use])
        return use

    def _take_all_offers(self, turn: Turn) -> None:
        for proposal in self._drafting.surest(turn):
            survival = turn.survival * self._calibration.estimate(proposal.evidence)
            if turn.is_full or survival < LEAST_READ:
                return
            turn.take(proposal, survival)

    def _read(self, worth: Worth, turns: SequenceOf[Turn], rows: int) -> int:
        """Have drafts read, and take of each what is likely to stand now; returns the rows of the pass."""
        cost = worth.cost
        began, before_ms = self._drafting.model_s, sum(turn.draft_ms for turn in turns)
        for turn in turns:
            turn.draft_ms += cost.draft_pass_ms(len(turns)) / len(turns)
            turn.draft_ms += cost.draft_row_ms * (self._drafting.num_behind(turn) - 1 + len(turn.draft))
        expected_ms = sum(turn.draft_ms for turn in turns) - before_ms
        for turn, opinions in zip(turns, self._drafting.read(turns), strict=True):
            draft = turn.draft.copy()
            rows -= max(turn.rows, cost.least_rows) - cost.least_rows
            turn.cut(0)
            is_mended = False
            if opinions is None:
                self._without_room.add(turn.sequence)
            for proposal, opinion in zip_longest(draft, (opinions or ())[: len(draft)]):
                second = proposal
                if opinion is not None:
                    second = self._second_thought(proposal, opinion, turn.sequence.config.greedy)
                survival = turn.survival * self._calibration.estimate(second.evidence)
                if survival < worth.row(rows, turn.rows, turn.context):
                    break
                rows += turn.rows >= cost.least_rows
                turn.take(second, survival)
                if is_mended := second.token != proposal.token:
                    break
            if is_mended:
                rows = self._go_on_copying(worth, turn, rows)
        cost.observe_draft(expected_ms, 1e3 * (self._drafting.model_s - began))
        return rows

    def _second_thought(self, proposal: Proposal, opinion: Opinion, is_greedy: bool) -> Proposal:
        """The likelier of what a text proposes and what the draft model would write there."""
        odds, kind = self._calibration.log_odds(proposal.evidence) / 2, "" if is_greedy else " sampled"
        own = opinion.proposal
        if own.token == proposal.token:
            return replace(proposal, evidence=Evidence(f"agreed{kind}", (odds, opinion.log_odds / 2)))
        doubted = replace(proposal, evidence=Evidence(f"doubted{kind}", (odds, opinion.log_odds / 2)))
        mended = replace(own, evidence=Evidence(f"mended{kind}", (odds, own.evidence.features[0])))
        return max(doubted, mended, key=lambda thought: self._calibration.estimate(thought.evidence))

    def _go_on_copying(self, worth: Worth, turn: Turn, rows: int) -> int:
        for proposal in self._drafting.surest(turn):
            survival = turn.survival * self._calibration.estimate(proposal.evidence)
            if turn.is_full or survival < worth.row(rows, turn.rows, turn.context):
                break
            rows += turn.rows >= worth.cost.least_rows
            turn.take(proposal, survival)
        return rows

    def _is_worth_writing(self, worth: Worth, turn: Turn, rows: int, num_sharing: int) -> bool:
        return not turn.is_full and worth.of_writing(turn, len(turn.draft), rows, 1, num_sharing) > 0

    def _write(self, worth: Worth, writing: SequenceOf[Turn], rows: int) -> None:
        """Have the draft model write behind drafts, token by token, for as long as it is sure enough."""
        cost, began = worth.cost, self._drafting.model_s
        expected_ms = 0.0
        for turn in writing:
            catching_up_ms = cost.draft_row_ms * (self._drafting.num_behind(turn) - 1)
            turn.draft_ms += catching_up_ms
            expected_ms += catching_up_ms
        while writing:
            draft_ms = cost.draft_pass_ms(len(writing)) / len(writing)
            expected_ms += cost.draft_pass_ms(len(writing))
            goes_on = []
            for turn, proposal in zip(writing, self._drafting.written(writing), strict=True):
                turn.draft_ms += draft_ms
                if proposal is None:
                    self._without_room.add(turn.sequence)
                    continue
                estimate = self._calibration.estimate(proposal.evidence)
                self._expect(estimate, FORGET)
                survival = turn.survival * estimate
                if survival < worth.row(rows, turn.rows, turn.context):
                    continue
                rows += turn.rows >= cost.least_rows
                turn.take(proposal, survival)
                price = worth.row(rows, turn.rows, turn.context) + worth.rate * draft_ms
                if not turn.is_full and survival * self.expected >= price:
                    goes_on.append(turn)
            writing = goes_on
        cost.observe_draft(expected_ms, 1e3 * (self._drafting.model_s - began))

    def _expect(self, estimate: float, weight: float) -> None:
        self.expected += weight * (estimate - self.expected)
