"""A small model of the target's vocabulary drafts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from ..block_pool import BlockPool, OutOfBlocks, Table
from ..calibration import Evidence
from ..config import GenerationConfig
from ..paged_model import PREFILL_ROWS, PagedModel, Window
from ..sampling import Logits, choose_token
from ..sequence import Sequence
from .base import Opinion, Proposal, Wanted

SUREST = 8.0  # log-odds of a proposal are cut here

# Weights of a proposal's features, bias first, to begin with. The model's own odds are taken at their word where it
# takes the likeliest token. Where it samples, the shared noise makes the target agree more often than they say.
PRIORS = {"draft_model": (0.7, 1.8, 0.0), "draft_model sampled": (0.4, 0.4, 0.0)}


@dataclass(slots=True)
class _Progress:
    """What the draft model's cache holds of one sequence."""

    table: Table
    tokens: list[int]  # whose keys and values are in the cache, rejected drafts included


class DraftModel:
    """Writes ahead with the draft model, token by token, in its own cache.

    It samples with the target's settings and the target's noise, so that both models choose the same token as often as
    their probabilities allow without knowing each other (Daliri et al., arXiv 2408.07978). Where its cache or context
    is full it proposes nothing. It runs only for proposals that are taken; what it missed is fed in one pass.
    """

    name = "draft_model"

    def __init__(self, model: PagedModel, pool: BlockPool, max_context: int) -> None:
        self._model = model
        self._pool = pool
        self._max_context = max_context
        self._progress: dict[Sequence, _Progress] = {}

    def propose(self, sequence: Sequence, ahead: SequenceOf[int] = ()) -> Iterator[Proposal]:
        ahead = list(ahead)
        while (proposal := self.write([(sequence, ahead)])[0]) is not None:
            yield proposal
            ahead.append(proposal.token)

    def write(self, wanted: Wanted) -> list[Proposal | None]:
        rows = zip(wanted, self._run(wanted, 1), strict=True)
        return [None if logits is None else self._proposal(*each, logits[0]) for each, logits in rows]

    def read(self, wanted: Wanted) -> list[list[Opinion] | None]:
        rows = zip(wanted, self._run(wanted, None), strict=True)
        return [None if logits is None else self._opinions(*each, logits) for each, logits in rows]

    def _run(self, wanted: Wanted, num_rows: int | None) -> list[list[Logits] | None]:
        """The last `num_rows` logits behind each sequence and what is ahead of it, or those of all that is ahead."""
        windows: dict[int, Window] = {}
        for i, (sequence, ahead) in enumerate(wanted):
            tokens = [*sequence.tokens, *ahead]
            progress = self._prepared(sequence, len(tokens))
            if progress is None:
                continue
            rows = num_rows or 1 + len(ahead)
            start = min(_common_length(progress.tokens, tokens), len(tokens) - rows)
            progress.tokens = tokens[:start]  # should the pass fail
            if len(tokens) - start > PREFILL_ROWS:
                self._model.prefill(tokens[:-rows], start, progress.table.blocks)
                start = len(tokens) - rows
            windows[i] = Window(tokens[start:], start, progress.table.blocks, rows)
        if not windows:
            return [None] * len(wanted)
        logits: dict[int, list[Logits]] = {}
        for i, found in zip(windows, self._model.forward(list(windows.values())), strict=True):
            sequence, ahead = wanted[i]
            first = 1 + len(ahead) - len(found)
            logits[i] = [sequence.restricted(row, ahead[:place]) for place, row in enumerate(found, first)]
            progress = self._progress[sequence]
            progress.tokens = [*sequence.tokens, *ahead]
            self._pool.publish(progress.table, sequence.tokens, len(sequence.tokens))
        return [logits.get(i) for i in range(len(wanted))]

    def _proposal(self, sequence: Sequence, ahead: SequenceOf[int], logits: Logits) -> Proposal:
        tokens = [*sequence.tokens, *ahead]
        token = choose_token(logits, tokens, sequence.num_prompt_tokens, sequence.config, sequence.answer)
        kind = self.name if sequence.config.greedy else f"{self.name} sampled"
        features = (_log_odds(logits, token, sequence.config) / 2, math.log2(1 + len(ahead)) / 4)
        return Proposal(token, self.name, Evidence(kind, features))

    def _opinions(self, sequence: Sequence, ahead: SequenceOf[int], logits: SequenceOf[Logits]) -> list[Opinion]:
        proposals = [self._proposal(sequence, ahead[:i], row) for i, row in enumerate(logits)]
        there = [*ahead, proposals[-1].token]
        config = sequence.config
        return [Opinion(p, _log_odds(row, t, config)) for p, row, t in zip(proposals, logits, there, strict=True)]

    def num_behind(self, sequence: Sequence) -> int:
        progress, tokens = self._progress.get(sequence), sequence.tokens
        cached = self._pool.num_known(tokens) if progress is None else _common_length(progress.tokens, tokens)
        return max(1, len(tokens) - cached)

    def release(self, sequence: Sequence) -> None:
        progress = self._progress.pop(sequence, None)
        if progress is not None:
            self._pool.close(progress.table)

    def _prepared(self, sequence: Sequence, num_slots: int) -> _Progress | None:
        """A sequence's cache with so many slots; None where cache or context are full."""
        if num_slots >= self._max_context:
            return None
        progress = self._progress.get(sequence)
        try:
            if progress is None:
                table, num_shared = self._pool.open(sequence.tokens, num_slots)
                progress = self._progress[sequence] = _Progress(table, sequence.tokens[:num_shared])
            else:
                self._pool.grow(progress.table, num_slots)
        except OutOfBlocks:
            return None
        return progress


def _common_length(left: list[int], right: list[int]) -> int:
    """How many first tokens are the same; by halves, since lists compare much faster than a loop over them."""
    same, different = 0, min(len(left), len(right)) + 1
    while different - same > 1:
        middle = (same + different) // 2
        if left[same:middle] == right[same:middle]:
            same = middle
        else:
            different = middle
    return same


def _log_odds(logits: Logits, token: int, config: GenerationConfig) -> float:
    """How sure the model itself is of a token, at the temperature asked for: log p / (1 - p), within SUREST."""
    scores = logits if config.greedy else logits / np.float32(config.temperature)
    others = np.delete(scores, token)
    highest = float(others.max())
    if highest == -math.inf:  # all others are ruled out
        return SUREST
    odds = float(scores[token]) - highest - math.log(float(np.exp(others - highest).sum()))
    return min(SUREST, max(-SUREST, odds))
