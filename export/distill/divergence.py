"""How far a draft is from its target.

The acceptance rate of a draft is one minus the total variation distance, and the KL term gives a gradient where the two
hardly overlap.
"""

from __future__ import annotations

import torch


def divergence(target_logits: torch.Tensor, draft_logits: torch.Tensor, variation: float) -> torch.Tensor:
    """Mean over rows of `row_divergence`; logits are (rows, vocabulary)."""
    return row_divergence(target_logits, draft_logits, variation).mean()


def row_divergence(target_logits: torch.Tensor, draft_logits: torch.Tensor, variation: float) -> torch.Tensor:
    """`variation * TV(p, q) + (1 - variation) * KL(p || q)` of each row, float32; logits are (rows, vocabulary)."""
    log_p = target_logits.float().log_softmax(-1)
    log_q = draft_logits.float().log_softmax(-1)
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum(-1)
    tv = (p - log_q.exp()).abs().sum(-1) / 2
    return variation * tv + (1 - variation) * kl
