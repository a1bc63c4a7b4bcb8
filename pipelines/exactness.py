"""Does this device keep the promise that the engine stands on?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .paged_model import PagedModel, Window

CUTS = (1, 2, 3, 1, 1, 5, 2, 8, 4)
NUM_REJECTED = 3


def is_exact(model: PagedModel, blocks: Sequence[int], num_tokens: int) -> bool:
    """Whether logits are bitwise the same in one pass and in short ones, rejected drafts written over in between.

    Feeds `num_tokens` arbitrary tokens twice into the slots of `blocks`, which must hold as many.
    """
    tokens = np.random.default_rng(0).integers(0, model.vocabulary_size, num_tokens).tolist()
    whole = model.forward([Window(tokens, 0, blocks, num_rows=num_tokens)])[0].copy()
    start, cut = 0, 0
    while start < num_tokens:
        size = min(CUTS[cut % len(CUTS)], num_tokens - start)
        due = tokens[start + size : start + size + NUM_REJECTED]
        rejected = [(token + 1) % model.vocabulary_size for token in due] if cut % 2 else []
        fed = tokens[start : start + size] + rejected
        (rows,) = model.forward([Window(fed, start, blocks, num_rows=len(fed))])
        if not np.array_equal(rows[:size], whole[start : start + size]):
            return False
        start, cut = start + size, cut + 1
    return True
