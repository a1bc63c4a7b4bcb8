"""Verification: which tokens of a draft are accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from .sampling import Logits


def verify(
    rows: NDArray[np.float32], draft: Sequence[int], target_token: Callable[[Logits, list[int]], int]
) -> list[int]:
    """The target's own tokens as far as the draft predicted them, and the one after.

    rows: the target's logits, float32 [draft + 1, vocabulary]; row i follows the first i tokens of the draft.
    target_token: `target_token(row, kept)` is the token that the target chooses from a row behind the tokens kept so
        far; it is not called for rows behind the first rejection.

    The draft decides how many tokens are kept, never which: each is what plain decoding would give. A deterministic
    draft is accepted as often as by the rejection sampling of Leviathan et al. (arXiv 2211.17192); see Daliri et al.
    (arXiv 2408.07978) for drafts that share the target's noise.
    """
    assert len(rows) == len(draft) + 1
    kept: list[int] = []
    for row, proposed in zip_longest(rows, draft):
        kept.append(target_token(row, kept))
        if kept[-1] != proposed:
            break
    return kept
