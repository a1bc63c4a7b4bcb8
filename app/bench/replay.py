"""Replay: asks every drafter at every position of a finished answer."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.pipelines import GenerationConfig, Pair
from outrider.pipelines.engine.block_pool import BlockPool
from outrider.pipelines.engine.request import Request
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.pair import context_length
from outrider.pipelines.speculation.acceptance import AcceptanceModel
from outrider.pipelines.speculation.drafters import suffix
from outrider.pipelines.speculation.drafters.base import Drafter
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.drafters.prompt_lookup import PromptLookup
from outrider.pipelines.speculation.drafters.suffix import Suffix
from outrider.pipelines.speculation.planner import LONGEST

from .schedule import Foresight


class Replay:
    """New drafters of a pair, which have learnt nothing from the measured runs."""

    def __init__(self, from_text: Sequence[Drafter], model: Drafter | None) -> None:
        self._from_text = from_text
        self._model = model

    @classmethod
    def load(cls, pair: Pair, max_tokens: int) -> Replay:
        """For answers of at most `max_tokens` tokens, prompt included. Raises what PagedModel raises."""
        from_text = (PromptLookup(), Suffix(AcceptanceModel(suffix.PRIORS)))
        if pair.draft is None:
            return cls(from_text, None)
        num_blocks = -(-(max_tokens + 1) // BLOCK_SIZE)
        model = PagedModel(pair.draft, num_blocks, exact=False)
        return cls(from_text, DraftModel(model, BlockPool(num_blocks, BLOCK_SIZE), context_length(pair.draft)))

    def foresight(self, prompt: Sequence[int], answer: Sequence[int], config: GenerationConfig) -> Foresight:
        """What the drafters would have proposed along `answer`, the target's answer to `prompt` with `config`.

        The draft model is asked for one token at a time: behind right tokens it writes the same in a longer draft.
        """
        request = Request(prompt, config, len(answer))
        from_text, by_model = [], []
        try:
            for at, token in enumerate(answer):
                rest = answer[at : at + LONGEST]
                from_text.append(max(_num_right(drafter, request, rest) for drafter in self._from_text))
                by_model.append(self._model is not None and _num_right(self._model, request, [token]) == 1)
                request.tokens.append(token)
        finally:
            for drafter in (*self._from_text, self._model):
                if drafter is not None:
                    drafter.release(request)
        return Foresight(len(prompt), tuple(from_text), tuple(by_model))


def _num_right(drafter: Drafter, request: Request, rest: Sequence[int]) -> int:
    """How many of a drafter's proposals match `rest` from its beginning. Requests no more than its length."""
    right = 0
    for token, proposal in zip(rest, drafter.propose(request), strict=False):
        if proposal.token != token:
            break
        right += 1
    return right
