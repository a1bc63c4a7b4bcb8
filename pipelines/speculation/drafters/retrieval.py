"""Retrieval: drafts from the user's own files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...engine.request import Request
from ..acceptance import Features
from ..reference import LENGTHS, Reference
from .base import Proposal

# Initial weights of the features below, bias first: mostly the share of an n-gram's occurrences that agree.
PRIORS = {"reference": (-1.0, 1.0, 0.2, 1.0, -0.2)}


class Retrieval:
    """Continues as the reference does after the same n-gram (REST, arXiv 2311.08252)."""

    name = "reference"

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        tail = [*request.tokens[-LENGTHS[0] :], *ahead][-LENGTHS[0] :]
        depth = len(ahead)
        while (match := self._reference.match(tail)) is not None:
            token = int(self._reference.tokens[match.end])
            odds = math.log(match.share / (1 - match.share))
            features = (match.length / 8, math.log2(1 + match.times) / 4, odds, math.log2(1 + depth) / 4)
            yield Proposal(token, self.name, Features(self.name, features))
            tail = [*tail, token][-LENGTHS[0] :]
            depth += 1

    def release(self, request: Request) -> None:
        """Nothing is kept of a request."""
