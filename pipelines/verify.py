"""Which draft tokens stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .sampling import Logits


def verify(rows: NDArray[np.float32], draft: Sequence[int], target_token: Callable[[Logits], int]) -> Iterator[int]:
    """The target's own tokens, for as long as the draft foresaw them, and the one after.

    `rows`, [draft + 1, vocabulary], are the target's logits: row i is what it says after the first i draft tokens.
    `target_token` turns a row into the token that the target writes there; it is called for a row only after the token
    before it was taken, and never behind the first rejection. The draft decides how many tokens come out, never which:
    each is what plain decoding writes. A deterministic draft is accepted as often as by the rejection sampling of
    Leviathan et al. (arXiv 2211.17192); see Daliri et al. (arXiv 2408.07978) for drafts that share the target's noise.
    """
    assert len(rows) == len(draft) + 1
    for row, proposed in zip(rows, draft, strict=False):
        token = target_token(row)
        yield token
        if token != proposed:
            return
    yield target_token(rows[-1])
