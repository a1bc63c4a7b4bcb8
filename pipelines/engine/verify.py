"""Which draft tokens stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from .sampling import Logits


def verify(
    rows: NDArray[np.float32], draft: Sequence[int], target_token: Callable[[Logits, list[int]], int]
) -> list[int]:
    """The target's own tokens, for as long as the draft foresaw them, and the one after.

    `rows`, [draft + 1, vocabulary], are the target's logits: row i is what it says after the first i draft tokens.
    `target_token(row, kept)` is the token that the target writes there, behind those kept so far; it is not asked for
    rows behind the first rejection. The draft decides how many tokens are kept, never which: each is what plain
    decoding writes. A deterministic draft is accepted as often as by the rejection sampling of Leviathan et al. (arXiv
    2211.17192); see Daliri et al. (arXiv 2408.07978) for drafts that share the target's noise.
    """
    assert len(rows) == len(draft) + 1
    kept: list[int] = []
    for row, proposed in zip_longest(rows, draft):
        kept.append(target_token(row, kept))
        if kept[-1] != proposed:
            break
    return kept
