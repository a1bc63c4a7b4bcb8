"""Replay: asks every drafter at every position of a finished answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from outrider.pipelines import GenerationConfig, Pair
from outrider.pipelines.engine.block_pool import BlockPool, BlockTable
from outrider.pipelines.engine.request import Request
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.pair import context_length
from outrider.pipelines.speculation.acceptance import AcceptanceModel
from outrider.pipelines.speculation.draft import LONGEST
from outrider.pipelines.speculation.drafters import suffix
from outrider.pipelines.speculation.drafters.base import Drafter, LogitsReader, StatesReader
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.head import Head
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.recycling import TokenRecycling
from outrider.pipelines.speculation.drafters.retrieval import Retrieval
from outrider.pipelines.speculation.drafters.self_speculative import SelfSpeculative
from outrider.pipelines.speculation.drafters.suffix import Suffix
from outrider.pipelines.speculation.runtime import Reading, Runtime

from .schedule import Foresight


class HeadDrafter(Drafter, StatesReader, Protocol):
    """`Head` is one."""


class Target(Protocol):
    """What reads an answer again, for the drafters that draft from what the target computes."""

    def reading(self, tokens: Sequence[int], num_rows: int) -> AbstractContextManager[Reading]:
        """See `Runtime.reading`."""
        ...


class Replay:
    """Drafters of a pair, which have learnt nothing from the measured runs.

    from_text: the drafters without a model.
    model: the draft model, if any.
    head: the head, if any.
    itself: the drafter that runs layers of the target, if any.
    target: reads each answer for the last two and for token recycling, which get its results as far as a run would have
        given them, but not the results of rejected rows.
    """

    def __init__(
        self,
        from_text: Sequence[Drafter],
        model: Drafter | None = None,
        head: HeadDrafter | None = None,
        itself: Drafter | None = None,
        target: Target | None = None,
    ) -> None:
        self._from_text = from_text
        self._model = model
        self._head = head
        self._itself = itself
        self._target = target

    @classmethod
    def load(cls, pair: Pair, max_tokens: int, runtime: Runtime) -> Replay:
        """For answers of at most `max_tokens` tokens, prompt included. Raises what PagedModel raises."""
        from_text: list[Drafter] = [PromptLookup(), Suffix(AcceptanceModel(suffix.PRIORS))]
        if runtime.reference is not None:
            from_text.append(Retrieval(runtime.reference))
        model = _draft_model(pair, max_tokens)
        if not runtime.can_read:
            return cls(from_text, model)
        from_text.append(TokenRecycling(runtime.vocabulary_size))
        head = next((each for each in runtime.model_drafters if isinstance(each, Head)), None)
        itself = next((each for each in runtime.model_drafters if isinstance(each, SelfSpeculative)), None)
        return cls(from_text, model, head, itself, runtime)

    def foresight(self, prompt: Sequence[int], answer: Sequence[int], config: GenerationConfig) -> Foresight:
        """What the drafters would have proposed along `answer`, the target's answer to `prompt` with `config`.

        The draft model is asked for one token at a time: after correct tokens it would write the same in a longer
        draft. A head is not, since it continues from its own states, nor is the target without some of its layers.
        """
        request = Request(prompt, config, len(answer))
        try:
            if self._target is None:
                return self._along(request, answer, None)
            with self._target.reading([*prompt, *answer[:-1]], len(answer)) as reading:
                return self._along(request, answer, reading)
        finally:
            for drafter in (*self._from_text, self._model, self._head, self._itself):
                if drafter is not None:
                    drafter.release(request)

    def _along(self, request: Request, answer: Sequence[int], reading: Reading | None) -> Foresight:
        from_text: list[int] = []
        by_model: list[bool] = []
        from_start: dict[str, tuple[int, ...]] = {}
        by_head: list[int] = []
        for at, token in enumerate(answer):
            if reading is not None:
                self._hand_on(request, at, reading)
            rest = answer[at : at + LONGEST]
            from_text.append(max(_num_right(drafter, request, rest) for drafter in self._from_text))
            by_model.append(self._model is not None and _num_right(self._model, request, [token]) == 1)
            if self._head is not None:
                by_head.append(_num_right(self._head, request, rest))
            request.tokens.append(token)
        if self._head is not None:
            from_start[self._head.name] = tuple(by_head)
        if self._itself is not None and reading is not None:
            from_start[self._itself.name] = _by_itself(self._itself, request, answer, reading.blocks)
        return Foresight(request.num_prompt_tokens, tuple(from_text), tuple(by_model), from_start)

    def _hand_on(self, request: Request, at: int, reading: Reading) -> None:
        """Hand on what a run has computed before the token `at` of the answer: all but the row of the token before."""
        if not at:
            return
        known = len(request.tokens) - 1
        begin = 0 if at == 1 else known - 1
        for drafter in self._from_text:
            if isinstance(drafter, LogitsReader):
                drafter.read_logits(request.tokens[known - 1 : known], reading.logits[at - 1 : at])
        if self._head is not None:
            self._head.read(request, begin, reading.states[begin:known])


def _draft_model(pair: Pair, max_tokens: int) -> DraftModel | None:
    if pair.draft is None:
        return None
    num_blocks = -(-(max_tokens + 1) // BLOCK_SIZE)
    model = PagedModel(pair.draft, num_blocks, exact=False)
    return DraftModel(model, BlockPool(num_blocks, BLOCK_SIZE), context_length(pair.draft))


def _by_itself(drafter: Drafter, request: Request, answer: Sequence[int], blocks: Sequence[int]) -> tuple[int, ...]:
    """For each token of an answer, how many from it on a drafter that writes into the target's cache would have
    proposed correctly. It is asked from the end to the beginning, so that it overwrites only what will not be read
    again."""
    request.table = BlockTable(list(blocks))
    num_right = []
    for at in reversed(range(len(answer))):
        del request.tokens[request.num_prompt_tokens + at :]
        num_right.append(_num_right(drafter, request, answer[at : at + LONGEST]))
        drafter.release(request)
    return tuple(reversed(num_right))


def _num_right(drafter: Drafter, request: Request, rest: Sequence[int]) -> int:
    """How many of a drafter's proposals match `rest` from its beginning. Requests no more than its length."""
    right = 0
    for token, proposal in zip(rest, drafter.propose(request), strict=False):
        if proposal.token != token:
            break
        right += 1
    return right
