"""Initial weights of an MTP head that can already copy, as `head_copying.py` lays them out for an EAGLE-3 head.

The last hidden state tells the token of its row in about 7 of 10 rows, by a linear map fitted with least squares. So
`eh_proj` begins with that map, joined with the embedding of the next token, and one query head in each group with a
circuit: it looks for earlier rows whose token is the current one, and puts what followed there into the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from outrider.export.distill import Sample
from outrider.export.distill.mtp import Mtp

from .head_copying import MATCH, fit, rows_of, set_rows

OWN, FOUND = slice(0, 64), slice(64, 192)  # units that hold the token of the row, and the one after it
REST = slice(192, 256)  # units with a part of the last state
LATE = 0.3  # weight of that part
COPIED = 6.0  # weight of the token found


@torch.no_grad()
def initialize(head: Mtp, target: PreTrainedModel, samples: Sequence[Sample], seed: int = 0) -> None:
    """Overwrite the fresh weights of `head` (width 256 or more, four heads of 64 or more, two to a key-value head) with
    ones that copy.

    samples: some texts, from which the linear map is fitted.
    """
    random = torch.Generator().manual_seed(seed)
    width = head.width
    basis, other = (torch.linalg.qr(torch.randn(width, width, generator=random)).Q.to(target.device) for _ in range(2))
    embedding = target.get_input_embeddings().weight
    embedding = embedding / embedding.pow(2).mean(-1, keepdim=True).sqrt()
    states, tokens, _ = rows_of(head, target, samples)
    states = states / states.pow(2).mean(-1, keepdim=True).sqrt()

    read = head.eh_proj.weight
    read.zero_()
    read[OWN, width:] = basis[OWN] @ fit(states, embedding[tokens]).T
    read[FOUND, :width] = basis[:128]
    read[REST, width:] = LATE * other[: REST.stop - REST.start]

    attention, mlp = head.layer.self_attn, head.layer.mlp
    query, key, value, output = (getattr(attention, f"{name}_proj").weight for name in ("q", "k", "v", "o"))
    slow = torch.cat([torch.arange(16, 32), torch.arange(48, 64)])  # rotary units that hardly turn over a function
    unit = torch.eye(width, device=target.device)
    every = slice(0, width)
    output.zero_()
    mlp.down_proj.weight.zero_()
    for group in (0, 1):  # a key-value head and the first of its query heads
        units = torch.arange(64)
        found = FOUND.start + 64 * group
        set_rows(query, 128 * group + slow, every, MATCH**0.5 * unit[FOUND][: len(slow)])
        set_rows(key, 64 * group + slow, every, MATCH**0.5 * unit[OWN][: len(slow)])
        set_rows(value, 64 * group + units, every, unit[found : found + 64])
        output[:, 128 * group + units] = COPIED * basis[64 * group : 64 * group + 64].T
