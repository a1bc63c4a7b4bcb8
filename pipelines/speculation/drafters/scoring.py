"""Scoring: what a model that drafts thinks of the tokens of a draft, by its logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from ...config import REJECTION, GenerationConfig
from ...engine.request import Request
from ...engine.sampling import Distribution, Logits, choose_token, distribution, sample_draft
from ..acceptance import Features
from .base import Proposal, Score, Wanted

SUREST = 8.0  # log-odds of a proposal are clipped here
LEAST = 1e-9  # probabilities below this share of the likeliest token's are taken for zero


def proposals(name: str, wanted: Wanted, found: Sequence[Sequence[Logits] | None]) -> list[Proposal | None]:
    """The token that the drafter `name` proposes after each request and the tokens ahead of it, by the last of the
    logits that were found there; None where there are none."""
    rows = zip(wanted, found, strict=True)
    return [None if logits is None else _score(name, *each, None, logits[-1]).proposal for each, logits in rows]


def scores(name: str, wanted: Wanted, found: Sequence[Sequence[Logits] | None]) -> list[list[Score] | None]:
    """For each request the score of each token ahead, and of the drafter's own token after the last, by the logits that
    were found after the request and after each token; None where there are none."""
    rows = zip(wanted, found, strict=True)
    return [None if logits is None else _scores_of_one(name, *each, logits) for each, logits in rows]


def _scores_of_one(name: str, request: Request, ahead: Sequence[int], logits: Sequence[Logits]) -> list[Score]:
    rows = zip_longest(logits, ahead)  # after the last token nothing is drafted yet
    return [_score(name, request, ahead[:i], there, row) for i, (row, there) in enumerate(rows)]


def _score(name: str, request: Request, ahead: Sequence[int], there: int | None, logits: Logits) -> Score:
    """The score of the drafted token `there` after a request and the tokens ahead, or, if None, of the drafter's own
    token."""
    tokens, config = [*request.tokens, *ahead], request.config
    logits = request.restricted(logits, ahead)
    own, drawn_from = _choice(request, tokens, logits, is_drawn=there is None)
    odds, odds_there = _log_odds(logits, (own, own if there is None else there), config)
    kind = name if config.greedy else f"{name} sampled"
    features = (odds / 2, math.log2(1 + len(ahead)) / 4)
    return Score(Proposal(own, name, Features(kind, features), drawn_from), odds_there)


def _choice(request: Request, tokens: Sequence[int], logits: Logits, is_drawn: bool) -> tuple[int, Distribution | None]:
    """The drafter's token after `tokens`, and the distribution that it was drawn from with noise of its own.

    It shares the target's noise, except for rejection sampling. For that it is drawn independently if `is_drawn`, and
    the planner may not leave it out (see `Proposal`); otherwise it is the likeliest, which does not depend on noise.
    """
    arguments = logits, tokens, request.num_prompt_tokens, request.config
    if request.config.greedy or request.config.acceptance != REJECTION:
        return choose_token(*arguments, request.answer), None
    source = distribution(*arguments)
    if not is_drawn:
        return source.likeliest, None
    return sample_draft(source, request.config, request.answer, len(tokens), len(request.tokens)), source


def _log_odds(logits: Logits, tokens: Sequence[int], config: GenerationConfig) -> list[float]:
    """Log-odds of each token at the request's temperature, within SUREST of 0."""
    scores = logits if config.greedy else logits / np.float32(config.temperature)
    highest = scores.max()
    total = float(np.exp(scores - highest).sum())
    shares = [math.exp(float(scores[token] - highest)) for token in tokens]
    odds = [math.log(max(share, LEAST) / max(total - share, LEAST)) for share in shares]
    return [min(SUREST, max(-SUREST, each)) for each in odds]
