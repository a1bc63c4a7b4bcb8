"""Replay: asks every drafter at every position of a finished answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.pipelines import GenerationConfig, Pair
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.request import Request
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.pair import context_length
from outrider.pipelines.speculation.acceptance import AcceptanceModel
from outrider.pipelines.speculation.drafters import suffix
from outrider.pipelines.speculation.drafters.base import Drafter, LogitsReader, StatesReader
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.recycling import TokenRecycling
from outrider.pipelines.speculation.drafters.suffix import Suffix
from outrider.pipelines.speculation.planner import LONGEST
from outrider.pipelines.speculation.runtime import Runtime

from .schedule import Foresight


class HeadDrafter(Drafter, StatesReader, Protocol):
    """`Head` is one."""


class Target(Protocol):
    """What reads an answer again, for the drafters that draft from what the target computes."""

    def read(self, tokens: Sequence[int], num_rows: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """See `Runtime.read`."""
        ...


class Replay:
    """Drafters of a pair, which have learnt nothing from the measured runs.

    from_text: those without a model.
    model: the draft model, if any.
    head: the head, if any.
    target: reads each answer for the head and for token recycling, which have its results as far as a run would have
        had them; the results of rejected rows are not among them.
    """

    def __init__(
        self,
        from_text: Sequence[Drafter],
        model: Drafter | None,
        head: HeadDrafter | None = None,
        target: Target | None = None,
    ) -> None:
        self._from_text = from_text
        self._model = model
        self._head = head
        self._target = target

    @classmethod
    def load(cls, pair: Pair, max_tokens: int, runtime: Runtime) -> Replay:
        """For answers of at most `max_tokens` tokens, prompt included. Raises what PagedModel raises."""
        vocabulary_size = runtime.vocabulary_size
        from_text = (PromptLookup(), Suffix(AcceptanceModel(suffix.PRIORS)), TokenRecycling(vocabulary_size))
        if not runtime.can_read:
            return cls(from_text[:2], _draft_model(pair, max_tokens))
        return cls(from_text, _draft_model(pair, max_tokens), runtime.head, runtime)

    def foresight(self, prompt: Sequence[int], answer: Sequence[int], config: GenerationConfig) -> Foresight:
        """What the drafters would have proposed along `answer`, the target's answer to `prompt` with `config`.

        The draft model is asked for one token at a time: behind right tokens it writes the same in a longer draft. The
        head is not, since it goes on from states of its own.
        """
        request = Request(prompt, config, len(answer))
        from_text: list[int] = []
        by_model: list[bool] = []
        by_head: list[int] = []
        results = None if self._target is None else self._target.read([*prompt, *answer[:-1]], len(answer))
        try:
            for at, token in enumerate(answer):
                if results is not None:
                    self._hand_on(request, at, *results)
                rest = answer[at : at + LONGEST]
                from_text.append(max(_num_right(drafter, request, rest) for drafter in self._from_text))
                by_model.append(self._model is not None and _num_right(self._model, request, [token]) == 1)
                by_head.append(0 if self._head is None else _num_right(self._head, request, rest))
                request.tokens.append(token)
        finally:
            for drafter in (*self._from_text, self._model, self._head):
                if drafter is not None:
                    drafter.release(request)
        return Foresight(len(prompt), tuple(from_text), tuple(by_model), tuple(by_head))

    def _hand_on(self, request: Request, at: int, logits: NDArray[np.float32], states: NDArray[np.float32]) -> None:
        """Hand on what a run has computed before the token `at` of the answer: all but the row of the token before."""
        if not at:
            return
        known = len(request.tokens) - 1
        begin = 0 if at == 1 else known - 1
        for drafter in self._from_text:
            if isinstance(drafter, LogitsReader):
                drafter.read_logits(request.tokens[known - 1 : known], logits[at - 1 : at])
        if self._head is not None:
            self._head.read(request, begin, states[begin:known])


def _draft_model(pair: Pair, max_tokens: int) -> DraftModel | None:
    if pair.draft is None:
        return None
    num_blocks = -(-(max_tokens + 1) // BLOCK_SIZE)
    model = PagedModel(pair.draft, num_blocks, exact=False)
    return DraftModel(model, BlockPool(num_blocks, BLOCK_SIZE), context_length(pair.draft))


def _num_right(drafter: Drafter, request: Request, rest: Sequence[int]) -> int:
    """How many of a drafter's proposals match `rest` from its beginning. Requests no more than its length."""
    right = 0
    for token, proposal in zip(rest, drafter.propose(request), strict=False):
        if proposal.token != token:
            break
        right += 1
    return right
