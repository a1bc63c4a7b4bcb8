"""Prompt lookup: what followed the last time these tokens stood here?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from ..calibration import Evidence
from ..sequence import Sequence
from .base import Proposal, source_of


@dataclass(slots=True)
class _Index:
    """For every n-gram of a sequence, where its latest occurrence ends."""

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_indexed: int = 0


class PromptLookup:
    """The longest n-gram at the end of the text that occurred before, and what followed its latest occurrence.

    The method is known as prompt lookup decoding (A. Saxena, 2023). Each token is indexed once.
    """

    name = "prompt_lookup"

    def __init__(self) -> None:
        self._indices: dict[Sequence, _Index] = {}

    def propose(self, sequence: Sequence, ahead: SequenceOf[int] = ()) -> Iterator[Proposal]:
        tokens, longest = sequence.tokens, sequence.config.max_ngram_size
        index = self._indices.setdefault(sequence, _Index())
        for end in range(index.num_indexed + 1, len(tokens)):  # an n-gram at the very end has no successor yet
            for size in range(1, min(longest, end) + 1):
                index.ends[tuple(tokens[end - size : end])] = end
            index.num_indexed = end
        tail = [*tokens[-longest:], *ahead][-longest:]
        for size in range(len(tail), 0, -1):
            if (match := index.ends.get(tuple(tail[-size:]))) is not None:
                for depth, token in enumerate(tokens[match:]):
                    evidence = Evidence(self.name, (size / 8, math.log2(1 + depth) / 4))
                    yield Proposal(token, source_of(self.name, match + depth, sequence), evidence)
                return

    def release(self, sequence: Sequence) -> None:
        self._indices.pop(sequence, None)
