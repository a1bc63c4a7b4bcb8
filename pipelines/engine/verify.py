"""Verification: which tokens of a draft are accepted.

Only `verify` is used by default, which is exact. With the other rules a drafted token may be kept although the target
would have written another. They are opt-in (`GenerationConfig.acceptance`). Each looks at the target's distribution as
it is sampled from: after structured output, penalties, temperature and truncation, so that what these rule out has
probability 0 and is never accepted. Noise is hashed, as everywhere (see `sampling.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from ..config import THRESHOLD, TYPICAL, GenerationConfig
from .sampling import Distribution, Logits, choose_token, distribution, sample, uniform

# The defaults of the authors' code, which takes the square root of epsilon for delta.
EPSILON, DELTA = 0.09, 0.3
ROLLBACK = 2.0  # nats; the authors recommend 2 to 5


def verify(
    rows: NDArray[np.float32], draft: Sequence[int], target_token: Callable[[Logits, list[int]], int]
) -> list[int]:
    """The target's own tokens as far as the draft predicted them, and the one after.

    rows: the target's logits, float32 [draft + 1, vocabulary]; row i follows the first i tokens of the draft.
    target_token: `target_token(row, kept)` is the token that the target chooses from a row after the tokens kept so
        far; it is not called for rows after the first rejection. If it fails after some tokens were kept, only these
        are returned: they may end the answer, and if they do not, the next pass fails, as it does in plain decoding.

    The draft decides how many tokens are kept, never which: each is what plain decoding would give. A deterministic
    draft is accepted as often as by the rejection sampling of Leviathan et al. (arXiv 2211.17192); see Daliri et al.
    (arXiv 2408.07978) for drafts that share the target's noise.
    """
    assert len(rows) == len(draft) + 1
    kept: list[int] = []
    for row, proposed in zip_longest(rows, draft):
        try:
            kept.append(target_token(row, kept))
        except Exception:
            if not kept:
                raise
            break
        if kept[-1] != proposed:
            break
    return kept


def choose_beside(
    proposed: int,
    drawn_from: Distribution | None,
    logits: Logits,
    tokens: Sequence[int],
    num_prompt_tokens: int,
    config: GenerationConfig,
    answer: int = 0,
) -> int:
    """The token that follows `tokens` where a draft has `proposed` one: the proposed one if the rule accepts it, else
    one of the target's, which may be the same.

    drawn_from: the distribution that the proposal was drawn from, independently of the target's noise; None for a
        proposal that was not drawn.

    In greedy decoding the target's distribution is all on one token: "typical" and "rejection" accept that alone.
    "threshold" looks at the softmax at temperature 1 there, as its authors do. A proposal that was not drawn has
    probability 1 in its own distribution. Then the exact rule is a case of rejection sampling: it accepts with the
    target's probability of the token, and its correction follows the residual distribution.

    Raises BrokenLogits.
    """
    arguments = logits, tokens, num_prompt_tokens, config
    if config.acceptance == THRESHOLD:
        target = distribution(*arguments)
        is_accepted = is_within_threshold(target, proposed, _or(config.rollback_threshold, ROLLBACK))
    elif config.greedy:
        is_accepted = False
    elif config.acceptance == TYPICAL:
        target = distribution(*arguments)
        epsilon, delta = _or(config.typical_epsilon, EPSILON), _or(config.typical_delta, DELTA)
        is_accepted = is_typical(target, proposed, epsilon, delta)
    elif drawn_from is not None:
        target, position = distribution(*arguments), len(tokens)
        if survives_rejection(target, drawn_from, proposed, uniform(config, answer, position)):
            return proposed
        return sample(residual(target, drawn_from), config, answer, position)
    else:
        is_accepted = False
    return proposed if is_accepted else choose_token(*arguments, answer)


def is_typical(target: Distribution, token: int, epsilon: float = EPSILON, delta: float = DELTA) -> bool:
    """Typical acceptance (Medusa, arXiv 2401.10774): p(token) > min(epsilon, delta exp(-H(p))), where H is the entropy
    in nats. The less certain the target is, the more it lets pass."""
    probabilities = target.probabilities[target.probabilities > 0]
    entropy = -float(np.sum(probabilities * np.log(probabilities)))
    return target.of_token(token) > min(epsilon, delta * math.exp(-entropy))


def is_within_threshold(target: Distribution, token: int, threshold: float = ROLLBACK) -> bool:
    """The rollback policy of BiLD (arXiv 2302.07863): the distance between the target and the draft, the cross-entropy
    -log p(token) in nats, is no more than the threshold."""
    probability = target.of_token(token)
    return probability > 0 and -math.log(probability) <= threshold


def survives_rejection(target: Distribution, draft: Distribution, token: int, noise: float) -> bool:
    """Rejection sampling (Leviathan et al., arXiv 2211.17192): a token drawn from q is kept with probability min(1,
    p(token) / q(token)). If a token that is not kept is replaced by one drawn from `residual`, the result follows p
    exactly.

    noise: uniform in (0, 1), independent of the draw.
    """
    return noise * draft.of_token(token) < target.of_token(token)


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """The distribution of the correction, max(0, p - q) scaled to a sum of 1; p if rounding leaves nothing of it."""
    left = np.maximum(target.probabilities - draft.of(target.ids), 0.0)
    total = left.sum()
    return Distribution(target.ids, left / total) if total > 0 else target


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
