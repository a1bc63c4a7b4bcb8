"""What a head computes while it is trained: several drafts from every row at once.

Step 0 reads the target's features. Step k reads, in the row that began at i, the state of step k - 1 and the embedding
of token i + 1 + k, and proposes token i + 2 + k. It sees what step 0 computed of the rows up to i, and the row's own
steps since, and nothing that other rows drafted: at run time only rows that were fed with target features stay in the
cache. This is the training-time test of EAGLE-3 (arXiv
2503.01840, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from transformers import DynamicCache


class Unrolled(Protocol):
    """A head that is one decoder layer, used again for each draft."""

    def begin(self, features: torch.Tensor) -> torch.Tensor:
        """What its layer reads of the target's features, (sequences, tokens, taps * width)."""
        ...

    def advance(
        self, ids: torch.Tensor, state: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        """The state after each of (sequences, rows) tokens, which the next step reads. Keys and values go to `cache`.

        mask: added to the scores, (sequences or 1, 1, rows, keys), the keys of earlier calls first.
        """
        ...

    def finish(self, state: torch.Tensor) -> torch.Tensor:
        """What the projection reads of a state."""
        ...


def unroll(
    head: Unrolled, ids: torch.Tensor, features: torch.Tensor, rows: torch.Tensor, steps: int
) -> Iterator[torch.Tensor]:
    """What the projection reads at each step, (sequences, rows, width): see `TrainableHead.drafts`."""
    count, last = rows.shape[1], ids.shape[1] - 1
    cache = DynamicCache()
    every = torch.arange(last, device=ids.device)
    seen = every <= every[:, None]  # a step's mask: row, key
    state = head.begin(features[:, :-1])
    state = head.advance(ids[:, 1:], state, every[None], _mask(seen[None], state), cache)
    state = state.gather(1, rows[..., None].expand(-1, -1, state.shape[-1]))
    yield head.finish(state)
    seen = every <= rows[..., None]
    own = torch.eye(count, dtype=torch.bool, device=ids.device).expand(len(ids), -1, -1)
    for step in range(1, steps):
        seen = torch.cat([seen, own], -1)
        tokens = ids.gather(1, (rows + 1 + step).clamp(max=last))
        state = head.advance(tokens, state, rows + step, _mask(seen, state), cache)
        yield head.finish(state)


def _mask(seen: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """What is added to the scores so that each row sees what it may."""
    mask = torch.zeros(seen.shape, dtype=state.dtype, device=state.device)
    return mask.masked_fill(~seen, torch.finfo(state.dtype).min)[:, None]
