"""A small model of the target's vocabulary drafts."""

from __future__ import annotations

from dataclasses import dataclass

from ..block_pool import BlockPool, OutOfBlocks, Table
from ..paged_model import PagedModel
from ..sampling import choose_token
from ..sequence import Sequence
from .base import Draft


@dataclass(slots=True)
class _Progress:
    """What the draft model's cache holds of one sequence."""

    table: Table
    tokens: list[int]  # whose keys and values are in the cache, rejected drafts included


class DraftModel:
    """Writes ahead with the draft model, token by token, in its own cache.

    It samples with the target's settings and the target's noise, so that both models choose the same token as often as
    their probabilities allow without knowing each other (Daliri et al., arXiv 2408.07978). Where its cache or context
    is full it proposes nothing.
    """

    name = "draft_model"

    def __init__(self, model: PagedModel, pool: BlockPool, max_context: int) -> None:
        self._model = model
        self._pool = pool
        self._max_context = max_context
        self._progress: dict[Sequence, _Progress] = {}

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        known = len(sequence.tokens)
        limit = min(limit, self._max_context - known)
        if limit < 1:
            return Draft()
        try:
            progress = self._prepared(sequence, known + limit)
        except OutOfBlocks:
            return Draft()
        tokens = list(sequence.tokens)
        cached = min(_common_length(progress.tokens, tokens), known - 1)
        progress.tokens = tokens[:cached]
        for _ in range(limit):
            logits = self._model.prefill(tokens, len(progress.tokens), progress.table.blocks)
            progress.tokens = list(tokens)
            tokens.append(choose_token(logits, tokens, sequence.num_prompt_tokens, sequence.config, sequence.answer))
        self._pool.publish(progress.table, sequence.tokens, known)
        return Draft(tuple(tokens[known:]), (self.name,) * limit)

    def release(self, sequence: Sequence) -> None:
        progress = self._progress.pop(sequence, None)
        if progress is not None:
            self._pool.close(progress.table)

    def _prepared(self, sequence: Sequence, num_slots: int) -> _Progress:
        progress = self._progress.get(sequence)
        if progress is None:
            table, num_shared = self._pool.open(sequence.tokens, num_slots)
            progress = self._progress[sequence] = _Progress(table, sequence.tokens[:num_shared])
        else:
            self._pool.grow(progress.table, num_slots)
        return progress


def _common_length(left: list[int], right: list[int]) -> int:
    """How many first tokens are the same."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
