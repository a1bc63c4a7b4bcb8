"""Scoring: what a model that drafts thinks of the tokens of a draft, by its logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from ...config import GenerationConfig
from ...engine.request import Request
from ...engine.sampling import Logits, choose_token
from ..acceptance import Features
from .base import Proposal, Score

SUREST = 8.0  # log-odds of a proposal are cut here
LEAST = 1e-9  # probabilities below this share of the likeliest token's are taken for zero


def scores(name: str, request: Request, ahead: Sequence[int], logits: Sequence[Logits]) -> list[Score]:
    """Of each token ahead of a request, and of the drafter's own behind the last; `logits` are those behind the request
    and behind each token."""
    rows = zip_longest(logits, ahead)  # behind the last token, none is there yet
    return [score(name, request, ahead[:i], there, row) for i, (row, there) in enumerate(rows)]


def score(name: str, request: Request, ahead: Sequence[int], there: int | None, logits: Logits) -> Score:
    """Of the drafted token `there` behind a request and the tokens ahead, or, if None, of the drafter's own token."""
    tokens, config = [*request.tokens, *ahead], request.config
    logits = request.restricted(logits, ahead)
    own = choose_token(logits, tokens, request.num_prompt_tokens, config, request.answer)
    odds, odds_there = _log_odds(logits, (own, own if there is None else there), config)
    kind = name if config.greedy else f"{name} sampled"
    features = (odds / 2, math.log2(1 + len(ahead)) / 4)
    return Score(Proposal(own, name, Features(kind, features)), odds_there)


def _log_odds(logits: Logits, tokens: Sequence[int], config: GenerationConfig) -> list[float]:
    """Log-odds of each token at the request's temperature, within SUREST of 0."""
    scores = logits if config.greedy else logits / np.float32(config.temperature)
    highest = scores.max()
    total = float(np.exp(scores - highest).sum())
    shares = [math.exp(float(scores[token] - highest)) for token in tokens]
    odds = [math.log(max(share, LEAST) / max(total - share, LEAST)) for share in shares]
    return [min(SUREST, max(-SUREST, each)) for each in odds]
