"""Initial weights of a head that can already copy, as `copying.py` lays them out for the models.

The residual streams of the target hold each token and the one before it, in a form that a linear map reads off: fitted
by least squares, it names the right one of 4,096 in over 99% of rows. So the head's `fc` begins with that map, and its
four query heads with a circuit. Head 0 looks for earlier rows that hold the current token, head 2 for those that hold
the one before it as well; what followed there, which is the embedding of such a row, goes to the output. Heads 1 and 3
look at the current token, which an earlier step has copied, and take it away.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from outrider.export.distill import Sample
from outrider.export.distill.head import read_target
from outrider.export.distill.samples import collate

MATCH = 6.0  # scale of the scores of equal tokens
SHARPNESS = 7.0  # amplitude of the queries and keys that find a row's own position
COPIED = 3.0  # weight of the token found
OWN, BEFORE = slice(0, 96), slice(96, 160)  # units of the state that hold the token and the one before it
LATE = slice(160, 255)  # units with a part of the last tap
CONSTANT = 255  # the unit that is 1 in every row
RIDGE = 1e-3  # regularization, as a share of the mean variance


@torch.no_grad()
def initialize(head: PreTrainedModel, target: PreTrainedModel, samples: Sequence[Sample], seed: int = 0) -> None:
    """Overwrite the fresh weights of `head` (4 or more heads of 64, two to a key-value head) with ones that copy.

    samples: some texts, from which the linear map is fitted.
    """
    model, attention = head.model, head.model.midlayer.self_attn
    width = head.config.hidden_size
    random = torch.Generator().manual_seed(seed)
    basis, other = (torch.linalg.qr(torch.randn(width, width, generator=random)).Q.to(head.device) for _ in range(2))
    embedding = model.embed_tokens.weight
    embedding = embedding / embedding.pow(2).mean().sqrt()  # as the layer's norm makes it
    features, tokens, before = rows_of(head, target, samples)

    read = model.fc.weight
    read[OWN] = basis[OWN] @ fit(features, embedding[tokens]).T
    earlier = torch.cat([basis[96:112], basis[16:32], basis[128:160]])  # units 112 to 127 as `OWN` has 16 to 31
    read[BEFORE] = earlier @ fit(features, embedding[before]).T
    late = features[:, -width:]
    read[LATE] = 0
    read[LATE, -width:] = other[: LATE.stop - LATE.start] / late.pow(2).mean().sqrt()
    read[CONSTANT] = fit(features, features.new_ones(len(features), 1))[:, 0]

    slow = torch.cat([torch.arange(16, 32), torch.arange(48, 64)])  # rotary units that hardly turn over a function
    fast = torch.arange(8)  # those that tell neighbours apart
    unit = MATCH**0.5 * torch.eye(width, device=head.device)
    here = unit[CONSTANT : CONSTANT + 1] * SHARPNESS / MATCH**0.5
    of_token, of_state = slice(0, width), slice(width, 2 * width)  # inputs of queries, keys and values
    query, key, value, output = (getattr(attention, f"{name}_proj").weight for name in ("q", "k", "v", "o"))
    set_rows(query, slow, of_token, MATCH**0.5 * basis[:32])
    set_rows(key, slow, of_state, unit[:32])
    set_rows(query, 128 + slow[:16], of_token, MATCH**0.5 * basis[:16])
    set_rows(key, 64 + slow[:16], of_state, unit[:16])
    set_rows(query, 128 + slow[16:], of_state, unit[16:32])
    set_rows(key, 64 + slow[16:], of_state, unit[112:128])
    output.zero_()
    model.midlayer.mlp.down_proj.weight.zero_()
    for group in (0, 1):  # a key-value head and its two query heads
        units = torch.arange(64)
        copied = basis[128 + 64 * group : 192 + 64 * group]
        set_rows(value, 64 * group + units, of_token, copied)
        output[:, 128 * group + units] = COPIED * copied.T
        output[:, 128 * group + 64 + units] = -COPIED * copied.T
        set_rows(query, 128 * group + 64 + fast, of_state, here)
        set_rows(key, 64 * group + fast, of_state, here)


def set_rows(weight: torch.Tensor, rows: torch.Tensor, columns: slice, values: torch.Tensor) -> None:
    """Let `rows` read `columns` alone."""
    weight[rows] = 0
    weight[rows, columns] = values


def rows_of(
    head: PreTrainedModel, target: PreTrainedModel, samples: Sequence[Sample]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, (rows, 3 * width), the token of each row, and the token before it; first rows are left out."""
    found = []
    for start in range(0, len(samples), 16):
        ids, mask = (tensor.to(target.device) for tensor in collate(samples[start : start + 16]))
        features, _ = read_target(target, head.taps, ids, mask, 1)
        kept = mask[:, 1:].bool()
        found.append((features[:, 1:][kept], ids[:, 1:][kept], ids[:, :-1][kept]))
    features, tokens, before = (torch.cat(part) for part in zip(*found, strict=True))
    return features, tokens, before


def fit(features: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The map of features to `wanted` with the least squared error, (features, wanted)."""
    square = features.T @ features
    square += RIDGE * square.diagonal().mean() * torch.eye(len(square), device=square.device)
    return torch.linalg.solve(square, features.T @ wanted)
