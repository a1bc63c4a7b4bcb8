"""EAGLE-3 heads (arXiv 2503.01840), with the classes and the checkpoint layout that optimum-intel exports.

A head is one decoder layer. In its row i it reads the embedding of token i + 1 and what three layers of the target made
of the tokens up to i, and proposes token i + 2. Its embedding is the target's own, which neither learns nor is stored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
from transformers import DynamicCache, LlamaConfig, PreTrainedModel

from .samples import Sample
from .taps import check_taps, default_taps, layers_of, norm_weight
from .trainable import shape_of
from .unrolled import unroll

ARCHITECTURE = "LlamaForCausalLMEagle3"
EMBEDDING = "embed_tokens.weight"


class Eagle3(LlamaEagle3ForCausalLM):
    """A head as optimum-intel builds it, which can be trained (see `TrainableHead`)."""

    most_steps: int | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(self.config.eagle_taps)

    @property
    def vocabulary(self) -> torch.Tensor:
        return draft_ids(self)

    def drafts(
        self, ids: torch.Tensor, features: torch.Tensor, rows: torch.Tensor, steps: int
    ) -> Iterator[torch.Tensor]:
        return unroll(self, ids, features, rows, steps)

    def project(self, states: torch.Tensor) -> torch.Tensor:
        return self.model.lm_head(states)

    def save(self, folder: Path) -> None:
        save_head(self, folder)

    def begin(self, features: torch.Tensor) -> torch.Tensor:
        return self.model.fc(features)

    def advance(
        self, ids: torch.Tensor, state: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        return self.model.midlayer(
            input_emb=self.model.embed_tokens(ids).to(state.dtype),
            hidden_states=state,
            attention_mask=mask,
            position_embeddings=self.model.rotary_emb(state, position_ids=positions),
            past_key_values=cache,
        )

    def finish(self, state: torch.Tensor) -> torch.Tensor:
        return self.model.norm(state)


def new_head(
    target: PreTrainedModel,
    taps: Sequence[int] | None = None,
    vocabulary: Sequence[int] | None = None,
    from_target: bool = True,
    seed: int = 0,
    feed_forward: int | None = None,
) -> Eagle3:
    """A head with the widths of `target`, float32, on its device.

    feed_forward: units of its feed-forward layer, where half of its weights are; without them, as many as the target's.
    taps: the layers whose outputs it reads, counted from 0; `default_taps` without them.
    vocabulary: the ascending target ids that it can propose; without them, all.
    from_target: begin with the target's final norm and vocabulary projection; the rest is random.

    Raises ValueError for taps or ids that the target does not have, or where it does not keep its layers as Llama does.
    """
    of = target.config.get_text_config()
    count = len(layers_of(target))
    taps = check_taps(taps if taps is not None else default_taps(count), count)
    ids = torch.arange(of.vocab_size) if vocabulary is None else torch.tensor(vocabulary, dtype=torch.int64)
    if not len(ids) or ids[0] < 0 or ids[-1] >= of.vocab_size or (ids.diff() <= 0).any():
        raise ValueError(f"the draft vocabulary must be ascending ids of 0..{of.vocab_size - 1}")
    torch.manual_seed(seed)
    head = Eagle3(_config(target, taps, len(ids), feed_forward)).to(target.device)
    model = head.model
    model.d2t.copy_(ids - torch.arange(len(ids)))
    model.t2d[ids] = True
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
        if from_target:
            model.lm_head.weight.copy_(target.get_output_embeddings().weight[ids.to(target.device)])
            model.norm.weight.copy_(norm_weight(target))
    model.embed_tokens.weight.requires_grad_(False)
    return head


def commonest_ids(samples: Sequence[Sample], count: int) -> list[int]:
    """The `count` commonest token ids of the answers, ascending, as FR-Spec (arXiv 2502.14856) cuts a vocabulary.

    Fewer if fewer occur; of equally common ones the lower.
    """
    counts = Counter(token for sample in samples for token in sample.ids[sample.start :])
    return sorted(sorted(counts, key=lambda token: (-counts[token], token))[:count])


def draft_ids(head: PreTrainedModel) -> torch.Tensor:
    """The target ids that the head can propose, int64, (draft vocabulary,)."""
    return head.model.d2t + torch.arange(len(head.model.d2t), device=head.model.d2t.device)


def save_head(head: PreTrainedModel, folder: Path) -> None:
    """Write `config.json` and float16 weights, named as in the published heads, without the target's embedding."""
    weights = {
        name: value.to(torch.float16) if value.is_floating_point() else value
        for name, value in head.model.state_dict().items()
        if name != EMBEDDING
    }
    head.model.save_pretrained(folder, state_dict=weights)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": [ARCHITECTURE], "dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_head(folder: Path, target: PreTrainedModel) -> Eagle3:
    """The head in a folder that `save_head` wrote, float32, with the embedding of `target`.

    Raises ValueError if it was made for a target of other sizes.
    """
    from safetensors.torch import load_file

    config = LlamaConfig.from_pretrained(folder)
    of = target.config.get_text_config()
    if (config.vocab_size, config.hidden_size) != (of.vocab_size, of.hidden_size):
        raise ValueError(
            f"{folder} is a head for {config.vocab_size} tokens and width {config.hidden_size}, and the target has "
            f"{of.vocab_size} and {of.hidden_size}"
        )
    weights = load_file(folder / "model.safetensors")
    vocabulary = (weights["d2t"] + torch.arange(len(weights["d2t"]))).tolist()
    head = new_head(target, config.eagle_taps, vocabulary, feed_forward=config.intermediate_size)
    missing, unexpected = head.model.load_state_dict(weights, strict=False)
    if missing != [EMBEDDING] or unexpected:
        raise ValueError(f"{folder} lacks {missing} or has {unexpected} in addition to a head's weights")
    return head.eval()


def _config(
    target: PreTrainedModel, taps: Sequence[int], draft_vocabulary: int, feed_forward: int | None
) -> LlamaConfig:
    config = shape_of(target)
    config.update(
        {
            "intermediate_size": feed_forward or config.intermediate_size,
            "architectures": [ARCHITECTURE],
            "draft_vocab_size": draft_vocabulary,
            "target_hidden_size": config.hidden_size,
            "eagle_taps": list(taps),
        }
    )
    return config
