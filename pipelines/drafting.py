"""Drafting: what the drafters of each mode propose. None of them can do worse than waste time."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import replace

from .calibration import Calibration
from .drafters.base import Chain, Drafter, ModelDrafter, Opinion, Proposal
from .drafters.grammar import Grammar
from .sequence import Sequence
from .turn import Turn

log = logging.getLogger(__name__)


class Drafting:
    """The drafters by mode; the draft model, where there is one, is the same in every mode that has it. For an answer
    of a given form, what the form forces comes first in every mode that drafts.

    model_s: seconds that it has taken, all in all.
    """

    def __init__(self, modes: Mapping[str, Chain], calibration: Calibration, vocabulary_size: int) -> None:
        self._modes = modes
        grammar = Grammar()
        self._modes_in_form = {
            mode: replace(chain, texts=(grammar, *chain.texts)) if chain.drafters else chain
            for mode, chain in modes.items()
        }
        self._calibration = calibration
        self._vocabulary_size = vocabulary_size
        self.model = next((chain.model for chain in modes.values() if chain.model is not None), None)
        self.model_s = 0.0

    def chain(self, turn: Turn) -> Chain:
        modes = self._modes if turn.sequence.constraint is None else self._modes_in_form
        return modes[turn.sequence.config.mode]

    def release(self, sequence: Sequence) -> None:
        """Forget a finished sequence."""
        for drafter in {id(drafter): drafter for chain in self._modes.values() for drafter in chain.drafters}.values():
            drafter.release(sequence)

    def chained(self, turn: Turn) -> Iterator[Proposal]:
        """What the drafters of a mode propose, one going on where the other ends."""
        ahead: list[int] = []
        for drafter in self.chain(turn).drafters:
            for proposal in self._proposals(drafter, turn.sequence, tuple(ahead)):
                yield proposal
                ahead.append(proposal.token)

    def surest(self, turn: Turn) -> Iterator[Proposal]:
        """Token by token, the likeliest of what the texts propose behind a turn's draft."""
        drafters, ahead = self.chain(turn).texts, turn.tokens
        running = [self._proposals(drafter, turn.sequence, tuple(ahead)) for drafter in drafters]
        while True:
            found = [next(proposals, None) for proposals in running]
            offered = [proposal for proposal in found if proposal is not None]
            if not offered:
                return
            best = self._calibration.likeliest(offered)
            yield best
            ahead.append(best.token)
            for i, proposal in enumerate(found):
                if len(found) > 1 and (proposal is None or proposal.token != best.token):
                    running[i] = self._proposals(drafters[i], turn.sequence, tuple(ahead))

    def num_behind(self, turn: Turn, ahead: SequenceOf[int] = ()) -> int:
        """Tokens that the draft model must be fed before it can propose the one behind a turn's sequence, and what is
        ahead of that."""
        assert self.model is not None
        return self.model.num_behind(turn.sequence, ahead)

    def written(self, turns: SequenceOf[Turn]) -> SequenceOf[Proposal | None]:
        """What the draft model proposes behind each turn's draft."""
        assert self.model is not None
        written: list[Proposal | None] = [None] * len(turns)
        with self._at_work(self.model, turns):
            proposals = self.model.write([(turn.sequence, turn.tokens) for turn in turns])
            written[:] = [proposal and self._checked(proposal) for proposal in proposals]
        return written

    def read(self, turns: SequenceOf[Turn]) -> SequenceOf[list[Opinion] | None]:
        """What the draft model thinks of each token of each turn's draft that it is to read, and would write next."""
        assert self.model is not None
        read: list[list[Opinion] | None] = [None] * len(turns)
        with self._at_work(self.model, turns):
            opinions = self.model.read([(turn.sequence, turn.tokens[: turn.num_read]) for turn in turns])
            for opinion in (opinion for each in opinions for opinion in each or ()):
                self._checked(opinion.proposal)
            read[:] = opinions
        return read

    @contextmanager
    def _at_work(self, model: ModelDrafter, turns: SequenceOf[Turn]) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except Exception:
            self._leave_out(model, [turn.sequence for turn in turns])
        finally:
            self.model_s += time.perf_counter() - began

    def _proposals(self, drafter: Drafter, sequence: Sequence, ahead: SequenceOf[int]) -> Iterator[Proposal]:
        """What a drafter proposes, for as long as it does not fail and the answer may go on so."""
        if sequence.drafting_failed:
            return
        try:
            proposals, ahead = drafter.propose(sequence, ahead), list(ahead)
            while True:
                began = time.perf_counter()
                proposal = next(proposals, None)
                if drafter is self.model:
                    self.model_s += time.perf_counter() - began
                if proposal is None or not sequence.allows(ahead, self._checked(proposal).token):
                    return
                yield proposal
                ahead.append(proposal.token)
        except Exception:
            self._leave_out(drafter, [sequence])

    def _checked(self, proposal: Proposal) -> Proposal:
        if not 0 <= operator.index(proposal.token) < self._vocabulary_size:
            raise ValueError(f"{proposal} is not of the target's vocabulary")
        return proposal

    def _leave_out(self, drafter: Drafter, sequences: SequenceOf[Sequence]) -> None:
        """A drafter can only cost speed: where it fails, the answer goes on without."""
        log.warning("The drafter %s failed; this answer goes on without it.", drafter.name, exc_info=True)
        for sequence in sequences:
            sequence.drafting_failed = True
