"""TokenLogprobs: the model's probability of a token, and its likeliest tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .sampling import Logits, sound


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities, from the softmax of the model's raw logits: before penalties, bias,
    temperature, truncation and structured output.

    top: the likeliest tokens with their logarithms, in descending order; equally likely ones by id.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, logits: Logits, token: int, num_top: int) -> TokenLogprobs:
        """The entry for a token that was chosen from a row of logits, computed in float64. Raises BrokenLogits."""
        scores = sound(logits).astype(np.float64)
        scores -= scores.max()
        scores -= np.log(np.exp(scores).sum())
        num_top = min(num_top, scores.size)
        ids = np.flatnonzero(scores >= np.partition(scores, -num_top)[-num_top])
        ids = ids[np.argsort(-scores[ids], kind="stable")][:num_top]
        return cls(token, float(scores[token]), tuple((int(i), float(scores[i])) for i in ids))
