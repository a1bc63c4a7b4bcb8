"""Initial weights that can already copy: an induction circuit, laid out by hand before training.

Small models wait millions of tokens for the two attention heads that find what followed the last occurrence of the
current token (Olsson et al., arXiv 2209.11895). Editing code is copying, so we start from those heads. In layer 0 one
head attends to the previous token and writes it into a subspace of its own; in layer 1 one head looks for positions
whose previous token is the current token, and writes the token there to the output. Training can then change them
freely.
"""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

CONSTANT = 0.1  # value of embedding unit 0 for every token, which the previous-token head reads
SHARPNESS = 7.0  # amplitude of the previous-token head's queries and keys
MATCH = 10.0  # scale of the induction head's scores
COPIED = 10.0  # weight of the token found against the current one
FINAL_SCALE = 2.0  # final norm, so that a copied token stands out of the vocabulary


@torch.no_grad()
def initialize(model: LlamaForCausalLM, seed: int = 0) -> None:
    """Overwrite the fresh weights of `model` (two layers or more, tied embeddings) with ones that copy."""
    config = model.config
    random = torch.Generator().manual_seed(seed)
    width, head = config.hidden_size, config.head_dim
    pairs = head // 2  # rotary pairs: unit i turns with unit i + pairs
    frequencies = config.rope_parameters["rope_theta"] ** (-torch.arange(pairs) / pairs)
    count = -(-3 * head // width)  # three projections, orthogonal to each other as far as the width allows
    bases = [torch.linalg.qr(torch.randn(width, width, generator=random)).Q for _ in range(count)]
    rows = torch.cat(bases)
    rows[:, 0] = 0  # blind to the constant
    read = rows[:head]  # (head, width): what is read of a token
    kept = rows[head : 2 * head]  # where the token before is kept
    copied = rows[2 * head : 3 * head]  # what is copied of the token found

    embedding = model.model.embed_tokens.weight
    embedding.normal_(0, 0.02, generator=random)
    embedding[:, 0] = CONSTANT
    model.model.norm.weight.fill_(FINAL_SCALE)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    size = embedding.pow(2).mean().sqrt()  # root mean square of a token's embedding
    constant = CONSTANT / size  # what unit 0 is after the norm

    fast = torch.arange(pairs) < max(4, pairs // 4)  # tell neighbours apart
    first = model.model.layers[0].self_attn
    query = torch.cat([fast.float(), torch.zeros(pairs)])
    key = torch.cat([fast * frequencies.cos(), fast * frequencies.sin()])  # one position ahead
    _set_head(first.q_proj.weight, 0, head, torch.outer(query, _unit(width)) * SHARPNESS / constant)
    _set_head(first.k_proj.weight, 0, head, torch.outer(key, _unit(width)) * SHARPNESS / constant)
    _set_head(first.v_proj.weight, 0, head, read)
    first.o_proj.weight[:, :head] = kept.T * size

    slow = torch.arange(pairs) >= pairs // 2  # hardly turn over the length of a function
    both = torch.cat([slow, slow]).float()[:, None]
    second = model.model.layers[1].self_attn
    _set_head(second.q_proj.weight, 0, head, both * read * MATCH**0.5)
    _set_head(second.k_proj.weight, 0, head, both * kept * MATCH**0.5)
    _set_head(second.v_proj.weight, 0, head, copied)
    second.o_proj.weight[:, :head] = copied.T * size * COPIED


def _set_head(weight: torch.Tensor, index: int, head: int, values: torch.Tensor) -> None:
    weight[index * head : (index + 1) * head] = values


def _unit(width: int) -> torch.Tensor:
    return torch.eye(width)[0]
