"""Prompt lookup: drafts what followed the last tokens when they occurred before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...engine.request import Request
from ..acceptance import Features
from .base import EARLIER_TURN, Proposal
from .latest import LatestIndex


class PromptLookup:
    """Drafts what followed the latest occurrence of the longest n-gram that ends the text and occurred before (prompt
    lookup decoding; A. Saxena, 2023). Each token is indexed once.
    """

    name = "prompt_lookup"

    def __init__(self) -> None:
        self._indices: dict[Request, LatestIndex] = {}

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        tokens, longest = request.tokens, request.config.max_ngram_size
        self.index(request)
        size, match = self._indices[request].match(tokens, [*tokens[-longest:], *ahead][-longest:])
        for depth, token in enumerate(tokens[match:] if size else ()):
            features = Features(self.name, (size / 8, math.log2(1 + depth) / 4))
            source = EARLIER_TURN if match + depth < request.num_earlier_tokens else self.name
            yield Proposal(token, source, features)

    def num_unindexed(self, request: Request) -> int:
        index = self._indices.get(request)
        return len(request.tokens) - (0 if index is None else index.num_tokens)

    def index(self, request: Request) -> None:
        index = self._indices.setdefault(request, LatestIndex(request.config.max_ngram_size))
        index.extend(request.tokens, len(request.tokens) - 1)  # an n-gram at the very end has no successor yet

    def release(self, request: Request) -> None:
        self._indices.pop(request, None)
