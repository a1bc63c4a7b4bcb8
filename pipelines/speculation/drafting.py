"""Drafting: what the drafters of each mode propose. None of them can do worse than waste time."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from ..engine.request import Request
from .calibration import Calibration
from .drafters.base import Chain, Drafter, ModelDrafter, Opinion, Proposal
from .drafters.grammar import Grammar
from .turn import Turn

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")  # of the draft model, for one turn
Ask: TypeAlias = Callable[[Sequence[Turn]], list[Answer | None]]


class Drafting:
    """The drafters by mode; the draft model, where there is one, is the same in every mode that has it. For an answer
    of a given form, what the form forces comes first in every mode that drafts.

    model_s: seconds that the draft model has taken, all in all, by `clock`.

    A drafter can only cost speed: an answer goes on without one that fails. Where the draft model fails for several
    answers at once, it is asked once more for each of them alone, and left out of those for which it fails again; of
    all of them where it fails for none, since together they would make it fail for ever.
    """

    def __init__(
        self,
        modes: Mapping[str, Chain],
        calibration: Calibration,
        vocabulary_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._modes = modes
        self._clock = clock
        self._left_out: dict[Request, list[Drafter]] = {}  # which drafters have failed for whom
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
        modes = self._modes if turn.request.constraint is None else self._modes_in_form
        return modes[turn.request.config.mode]

    def release(self, request: Request) -> None:
        """Forget a finished request."""
        self._left_out.pop(request, None)
        for drafter in {id(drafter): drafter for chain in self._modes.values() for drafter in chain.drafters}.values():
            drafter.release(request)

    def can_ask_model(self, turn: Turn) -> bool:
        """Whether a turn's mode has a draft model, and it has not failed for its request."""
        model = self.chain(turn).model
        return model is not None and self._is_sound(model, turn.request)

    def chained(self, turn: Turn) -> Iterator[Proposal]:
        """What the drafters of a mode propose, one going on where the other ends."""
        ahead: list[int] = []
        for drafter in self.chain(turn).drafters:
            for proposal in self._proposals(drafter, turn.request, tuple(ahead)):
                yield proposal
                ahead.append(proposal.token)

    def surest(self, turn: Turn) -> Iterator[Proposal]:
        """Token by token, the likeliest of what the texts propose behind a turn's draft."""
        drafters, ahead = self.chain(turn).texts, turn.tokens
        running = [self._proposals(drafter, turn.request, tuple(ahead)) for drafter in drafters]
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
                    running[i] = self._proposals(drafters[i], turn.request, tuple(ahead))

    def num_behind(self, turn: Turn, ahead: Sequence[int] = ()) -> int:
        """Tokens that the draft model must be fed before it can propose the one behind a turn's request, and what is
        ahead of that."""
        assert self.model is not None
        return self.model.num_behind(turn.request, ahead)

    def written(self, turns: Sequence[Turn]) -> Sequence[Proposal | None]:
        """What the draft model proposes behind each turn's draft."""
        assert self.model is not None
        model = self.model

        def write(turns: Sequence[Turn]) -> list[Proposal | None]:
            proposals = model.write([(turn.request, turn.tokens) for turn in turns])
            return [proposal and self._checked(proposal) for _, proposal in zip(turns, proposals, strict=True)]

        return self._asked(model, write, turns)

    def read(self, turns: Sequence[Turn]) -> Sequence[list[Opinion] | None]:
        """What the draft model thinks of each token of each turn's draft that it is to read, and would write next."""
        assert self.model is not None
        model = self.model

        def read(turns: Sequence[Turn]) -> list[list[Opinion] | None]:
            read = model.read([(turn.request, turn.tokens[: turn.num_read]) for turn in turns])
            for _, opinions in zip(turns, read, strict=True):
                for opinion in opinions or ():
                    self._checked(opinion.proposal)
            return read

        return self._asked(model, read, turns)

    def _asked(self, model: ModelDrafter, ask: Ask[Answer], turns: Sequence[Turn]) -> list[Answer | None]:
        """What the draft model answers for each turn; None where it fails."""
        began = self._clock()
        try:
            return ask(turns)
        except Exception as error:
            answers: list[Answer | None] = [None] * len(turns)
            failures: dict[int, Exception] = {}
            if len(turns) > 1:
                answers, failures = _one_by_one(ask, turns)
            for i, turn in enumerate(turns):
                if not failures or i in failures:
                    self._leave_out(model, turn.request, failures.get(i, error))
            return answers if failures else [None] * len(turns)
        finally:
            self.model_s += self._clock() - began

    def _proposals(self, drafter: Drafter, request: Request, ahead: Sequence[int]) -> Iterator[Proposal]:
        """What a drafter proposes, for as long as it does not fail and the answer may go on so."""
        if not self._is_sound(drafter, request):
            return
        try:
            proposals, ahead = drafter.propose(request, ahead), list(ahead)
            while True:
                began = self._clock()
                proposal = next(proposals, None)
                if drafter is self.model:
                    self.model_s += self._clock() - began
                if proposal is None or not request.allows(ahead, self._checked(proposal).token):
                    return
                yield proposal
                ahead.append(proposal.token)
        except Exception as error:
            self._leave_out(drafter, request, error)

    def _checked(self, proposal: Proposal) -> Proposal:
        if not 0 <= operator.index(proposal.token) < self._vocabulary_size:
            raise ValueError(f"{proposal} is not of the target's vocabulary")
        return proposal

    def _is_sound(self, drafter: Drafter, request: Request) -> bool:
        return not any(drafter is failed for failed in self._left_out.get(request, ()))

    def _leave_out(self, drafter: Drafter, request: Request, error: Exception) -> None:
        log.warning("The drafter %s failed; this answer goes on without it.", drafter.name, exc_info=error)
        self._left_out.setdefault(request, []).append(drafter)


def _one_by_one(ask: Ask[Answer], turns: Sequence[Turn]) -> tuple[list[Answer | None], dict[int, Exception]]:
    """What the draft model answers for each turn alone, and for which of them it fails, by their places."""
    answers: list[Answer | None] = [None] * len(turns)
    failures: dict[int, Exception] = {}
    for i, turn in enumerate(turns):
        try:
            answers[i] = ask([turn])[0]
        except Exception as error:
            failures[i] = error
    return answers, failures
