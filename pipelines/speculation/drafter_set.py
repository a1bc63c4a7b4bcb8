"""DrafterSet: the drafters of each mode, and what they propose. The worst that any of them can do is waste time."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..engine.request import Request
from ..model.target import Window
from .acceptance import AcceptanceModel
from .draft import Draft
from .drafters.base import (
    Drafter,
    IndexingDrafter,
    LogitsReader,
    ModeDrafters,
    ModelDrafter,
    Proposal,
    Score,
    StatesReader,
)
from .drafters.grammar import Grammar
from .overhead import Usual

MANY = 16  # tokens: indexing fewer is part of asking the text drafters
FIRST_INDEXING_MS = 3e-3  # for a token, before that is known

log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = TypeVar("Answer")  # of a model, for one draft
Ask: TypeAlias = Callable[[Sequence[Draft]], list[Answer | None]]


class DrafterSet:
    """The drafters by mode. With structured output, tokens forced by the grammar come first in every mode that drafts.

    models: the drafters that run a model, such as a draft model or a head.
    model_s: their total time in seconds, by `clock`.
    form_s: the time of asking the text drafters for answers with structured output, likewise.

    A drafter can only cost speed: one that fails is left out of that request. If a model fails for several requests at
    once, it is asked again for each alone, and left out of those for which it fails again. If it fails for none of them
    alone, it is left out of all, since together they would make it fail every time.
    """

    def __init__(
        self,
        modes: Mapping[str, ModeDrafters],
        acceptance: AcceptanceModel,
        vocabulary_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._modes = modes
        self._clock = clock
        self._left_out: dict[Request, list[Drafter]] = {}  # drafters that are not asked for a request
        self._given_up: list[Drafter] = []  # for all requests
        grammar = Grammar()
        self._modes_in_form = {
            mode: replace(chain, texts=(grammar, *chain.texts)) if chain.drafters else chain
            for mode, chain in modes.items()
        }
        # Found once, since checking whether an object has the methods of a protocol takes 10 us.
        self._logits_readers = {
            mode: [drafter for drafter in chain.drafters if isinstance(drafter, LogitsReader)]
            for mode, chain in modes.items()
        }
        self._states_readers = {
            mode: [drafter for drafter in chain.drafters if isinstance(drafter, StatesReader)]
            for mode, chain in modes.items()
        }
        self._indexing = {
            mode: [drafter for drafter in chain.texts if isinstance(drafter, IndexingDrafter)]
            for mode, chain in modes.items()
        }
        self._acceptance = acceptance
        self._vocabulary_size = vocabulary_size
        self.models = tuple(dict.fromkeys(model for chain in modes.values() for model in chain.models))
        self.model_s = self.form_s = 0.0
        self._indexing_ms = Usual(FIRST_INDEXING_MS)  # for a token

    def of(self, request: Request) -> ModeDrafters:
        """The drafters of a request's mode."""
        modes = self._modes if request.constraint is None else self._modes_in_form
        return modes[request.config.mode]

    def release(self, request: Request) -> None:
        """Forget a finished request."""
        self._left_out.pop(request, None)
        for drafter in self.of(request).drafters:
            drafter.release(request)

    def can_ask(self, model: ModelDrafter, draft: Draft) -> bool:
        """Whether the request's mode uses a model that has not failed for this request."""
        return model in self.of(draft.request).models and self._is_sound(model, draft.request)

    def give_up(self, drafter: Drafter) -> None:
        """Leave a drafter out of all requests."""
        self._given_up.append(drafter)

    def readers(self, request: Request) -> list[Drafter]:
        """The drafters of the request's mode that draft from the results of passes."""
        return [*self._logits_readers[request.config.mode], *self.states_readers(request)]

    def states_readers(self, request: Request) -> Sequence[Drafter]:
        """Those of them that read hidden states."""
        return self._states_readers[request.config.mode]

    def index(self, request: Request, pays: Callable[[float], bool]) -> bool:
        """Have the text drafters index those tokens of a request that they have not indexed yet, if there is time for
        it: `pays` is asked about the milliseconds that this usually takes. Returns whether they know the request now,
        except for fewer than MANY tokens, which `propose` indexes."""
        number = self._num_unindexed(request)
        if number < MANY:
            return True
        if not pays(number * self._indexing_ms.value):
            return False
        began = self._clock()
        for drafter in self._indexing[request.config.mode]:
            self._hand_on(drafter, request, drafter.index, request)
        if all(self._is_sound(drafter, request) for drafter in self._indexing[request.config.mode]):
            self._indexing_ms.add(1e3 * (self._clock() - began) / number)
        return True

    def _num_unindexed(self, request: Request) -> int:
        """The tokens of a request that the text drafters have not indexed, added up over the drafters."""
        number = 0
        for drafter in self._indexing[request.config.mode]:
            if self._is_sound(drafter, request):
                try:
                    number += drafter.num_unindexed(request)
                except Exception as error:
                    self._leave_out(drafter, request, error)
        return number

    def leave_out(self, drafter: Drafter, request: Request) -> None:
        """Do not ask a drafter for a request."""
        if self._is_sound(drafter, request):
            self._left_out.setdefault(request, []).append(drafter)

    def read(
        self,
        request: Request,
        window: Window,
        logits: NDArray[np.float32] | None,
        states: NDArray[np.float32] | None,
    ) -> None:
        """Hand on the results of a pass to the drafters that draft from them (see `LogitsReader`, `StatesReader`).

        window: the part of the request that was in the pass.
        logits: float32 [window.num_rows, vocabulary]; None if they are not to be read.
        states: float32 [tokens of the window, taps * width], if any.
        """
        if logits is not None:
            tokens = window.tokens[len(window.tokens) - len(logits) :]
            for reader in self._logits_readers[request.config.mode]:
                self._hand_on(reader, request, reader.read_logits, tokens, logits)
        if states is not None:
            accepted = states[: request.num_cached - window.start]
            for drafter in self._states_readers[request.config.mode]:
                self._hand_on(drafter, request, drafter.read, request, window.start, accepted)

    def chained(self, draft: Draft) -> Iterator[Proposal]:
        """Proposals of a mode's drafters, each going on where the one before it ends."""
        ahead: list[int] = []
        for drafter in self.of(draft.request).drafters:
            for proposal in self._proposals(drafter, draft, tuple(ahead)):
                yield proposal
                ahead.append(proposal.token)

    def surest(self, draft: Draft) -> Iterator[tuple[Proposal, float]]:
        """For each token after the draft, the likeliest proposal of the text drafters, and its probability if the
        tokens before it are accepted."""
        surest = self._surest(draft)
        return self._timed(surest, self._add_form_s) if draft.has_form else surest

    def _surest(self, draft: Draft) -> Iterator[tuple[Proposal, float]]:
        drafters, ahead = self.of(draft.request).texts, draft.tokens
        running = [self._proposals(drafter, draft, tuple(ahead)) for drafter in drafters]
        while True:
            found = [next(proposals, None) for proposals in running]
            offered = [proposal for proposal in found if proposal is not None]
            if not offered:
                return
            best, probability = self._acceptance.likeliest(offered, draft.conditions)
            yield best, probability
            ahead.append(best.token)
            for i, proposal in enumerate(found):
                if len(found) > 1 and (proposal is None or proposal.token != best.token):
                    running[i] = self._proposals(drafters[i], draft, tuple(ahead))

    def generated(self, model: ModelDrafter, drafts: Sequence[Draft]) -> Sequence[Proposal | None]:
        """A model's proposal for the token after each draft."""

        def generate(drafts: Sequence[Draft]) -> list[Proposal | None]:
            proposals = model.generate([(draft.request, draft.tokens) for draft in drafts])
            for _, proposal in zip(drafts, proposals, strict=True):
                if proposal is not None:
                    self._checked(proposal)
            return proposals

        return self._asked(model, generate, drafts)

    def score(self, model: ModelDrafter, drafts: Sequence[Draft]) -> Sequence[list[Score] | None]:
        """A model's scores of the first `num_scored` tokens of each draft, and of its own token after them."""

        def score(drafts: Sequence[Draft]) -> list[list[Score] | None]:
            scores = model.score([(draft.request, draft.tokens[: draft.num_scored]) for draft in drafts])
            for _, of_draft in zip(drafts, scores, strict=True):
                for each in of_draft or ():
                    self._checked(each.proposal)
            return scores

        return self._asked(model, score, drafts)

    def _asked(self, model: ModelDrafter, ask: Ask[Answer], drafts: Sequence[Draft]) -> list[Answer | None]:
        """A model's answer for each draft; None if it fails."""
        began = self._clock()
        try:
            return ask(drafts)
        except Exception as error:
            answers: list[Answer | None] = [None] * len(drafts)
            failures: dict[int, Exception] = {}
            if len(drafts) > 1:
                answers, failures = _one_by_one(ask, drafts)
            for i, draft in enumerate(drafts):
                if not failures or i in failures:
                    self._leave_out(model, draft.request, failures.get(i, error))
            return answers if failures else [None] * len(drafts)
        finally:
            self.model_s += self._clock() - began

    def _proposals(self, drafter: Drafter, draft: Draft, ahead: Sequence[int]) -> Iterator[Proposal]:
        """What a drafter proposes after the draft's request and the tokens ahead of it, until it fails or proposes a
        token that the answer's structure rules out."""
        request = draft.request
        if not self._is_sound(drafter, request):
            return
        try:
            proposals, ahead = drafter.propose(request, ahead), list(ahead)
            for proposal in self._timed(proposals, self._add_model_s) if drafter in self.models else proposals:
                self._checked(proposal)
                if request.constraint is not None:
                    if not request.allows(ahead, proposal.token):
                        return
                    ahead.append(proposal.token)
                yield proposal
        except Exception as error:
            self._leave_out(drafter, request, error)

    def _timed(self, offered: Iterator[T], add_s: Callable[[float], None]) -> Iterator[T]:
        """The same items; the time that each takes is passed to `add_s`."""
        while True:
            began = self._clock()
            try:
                each = next(offered, None)
            finally:
                add_s(self._clock() - began)
            if each is None:
                return
            yield each

    def _add_model_s(self, seconds: float) -> None:
        self.model_s += seconds

    def _add_form_s(self, seconds: float) -> None:
        self.form_s += seconds

    def _checked(self, proposal: Proposal) -> Proposal:
        if not 0 <= operator.index(proposal.token) < self._vocabulary_size:
            raise ValueError(f"{proposal} is not in the target's vocabulary")
        return proposal

    def _hand_on(self, drafter: Drafter, request: Request, read: Callable[..., None], *results: object) -> None:
        if self._is_sound(drafter, request):
            try:
                read(*results)
            except Exception as error:
                self._leave_out(drafter, request, error)

    def _is_sound(self, drafter: Drafter, request: Request) -> bool:
        if not self._given_up and request not in self._left_out:  # as nearly always
            return True
        return not any(drafter is failed for failed in (*self._given_up, *self._left_out.get(request, ())))

    def _leave_out(self, drafter: Drafter, request: Request, error: Exception) -> None:
        log.warning("The drafter %s failed; this answer goes on without it.", drafter.name, exc_info=error)
        self.leave_out(drafter, request)


def _one_by_one(ask: Ask[Answer], drafts: Sequence[Draft]) -> tuple[list[Answer | None], dict[int, Exception]]:
    """What a model answers for each draft alone, and the errors of those for which it fails, by their places."""
    answers: list[Answer | None] = [None] * len(drafts)
    failures: dict[int, Exception] = {}
    for i, draft in enumerate(drafts):
        try:
            answers[i] = ask([draft])[0]
        except Exception as error:
            failures[i] = error
    return answers, failures
