"""What a head computes while it is trained: several drafts from every row at once.

Step 0 reads the target's features. Step k reads, in the row that began at i, the state of step k - 1 and the embedding
of token i + 1 + k, and proposes token i + 2 + k. It sees what step 0 computed of the rows up to i, and the row's own
steps since, and nothing that other rows drafted: at run time only rows that were fed with target features stay in the
cache. The state is the layer's output before the final norm. This is the training-time test of EAGLE-3 (arXiv
2503.01840, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
from transformers import DynamicCache


def unroll(
    head: LlamaEagle3ForCausalLM, ids: torch.Tensor, features: torch.Tensor, rows: torch.Tensor, steps: int
) -> Iterator[torch.Tensor]:
    """The normed states of each step, (sequences, rows, width), from which `head.model.lm_head` makes logits.

    ids: token ids padded on the right, int64, (sequences, tokens).
    features: the outputs of the tapped layers for each token, concatenated, (sequences, tokens, 3 * width).
    rows: where drafts begin, int64, (sequences, rows); row i has read token i + 1, so it is at most tokens - 2. For
        steps beyond the end of the text, the last token is read again: leave their states out.
    """
    model = head.model
    count, last = rows.shape[1], ids.shape[1] - 1
    cache = DynamicCache()
    every = torch.arange(last, device=ids.device)
    seen = every <= every[:, None]  # a step's mask: row, key
    state = _layer(model, ids[:, 1:], model.fc(features[:, :-1]), every[None], seen[None], cache)
    state = state.gather(1, rows[..., None].expand(-1, -1, state.shape[-1]))
    yield model.norm(state)
    seen = every <= rows[..., None]
    own = torch.eye(count, dtype=torch.bool, device=ids.device).expand(len(ids), -1, -1)
    for step in range(1, steps):
        seen = torch.cat([seen, own], -1)
        state = _layer(model, ids.gather(1, (rows + 1 + step).clamp(max=last)), state, rows + step, seen, cache)
        yield model.norm(state)


def _layer(
    model: torch.nn.Module,
    ids: torch.Tensor,
    state: torch.Tensor,
    positions: torch.Tensor,
    seen: torch.Tensor,
    cache: DynamicCache,
) -> torch.Tensor:
    """The head's layer on (sequences, rows) tokens and states, whose keys and values go to `cache`.

    seen: bool, (sequences or 1, rows, keys), the keys of earlier calls first.
    """
    mask = torch.zeros(seen.shape, dtype=state.dtype, device=state.device)
    mask = mask.masked_fill(~seen, torch.finfo(state.dtype).min)[:, None]
    return model.midlayer(
        input_emb=model.embed_tokens(ids).to(state.dtype),
        hidden_states=state,
        attention_mask=mask,
        position_embeddings=model.rotary_emb(state, position_ids=positions),
        past_key_values=cache,
    )
