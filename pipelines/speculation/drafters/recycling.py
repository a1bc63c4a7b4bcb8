"""Token recycling: drafts the token that the target last found likeliest after the previous one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...engine.request import Request
from ..acceptance import Features
from .base import Proposal

UNKNOWN = -1
LONGEST_STREAK = 15

# Initial weights of the features below, bias first.
PRIORS = {"recycling": (-1.0, 2.0, -0.5)}


class TokenRecycling:
    """Drafts, after each token, the one that was likeliest when the target last read that token, even if it was
    rejected then.

    Two numbers are kept for each token of the vocabulary, in one table for all requests, so that answers profit from
    earlier ones: the likeliest token after it, and how many times in a row it was the same. After Luo et al. (arXiv
    2408.08696), with one candidate for each token, since drafts are chains here and not trees.
    """

    name = "recycling"

    def __init__(self, vocabulary_size: int) -> None:
        self._likeliest = np.full(vocabulary_size, UNKNOWN, np.int32)
        self._streaks = np.zeros(vocabulary_size, np.int8)

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        token, depth, stop = (ahead or request.tokens)[-1], len(ahead), request.config.stop_ids
        while token not in stop and (likeliest := int(self._likeliest[token])) != UNKNOWN:
            features = (math.log2(1 + int(self._streaks[token])) / 4, math.log2(1 + depth) / 4)
            yield Proposal(likeliest, self.name, Features(self.name, features))
            token, depth = likeliest, depth + 1

    def read_logits(self, tokens: Sequence[int], logits: NDArray[np.float32]) -> None:
        for token, likeliest in zip(tokens, logits.argmax(axis=1).tolist(), strict=True):
            is_same = self._likeliest[token] == likeliest
            self._streaks[token] = min(self._streaks[token] + 1, LONGEST_STREAK) if is_same else 0
            self._likeliest[token] = likeliest

    def forget(self) -> None:
        """Forget all that was read."""
        self._likeliest.fill(UNKNOWN)
        self._streaks.fill(0)

    def release(self, request: Request) -> None:
        """Nothing is kept of a request."""
