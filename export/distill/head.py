"""Distils an EAGLE-3 head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
from transformers import PreTrainedModel

from .divergence import row_divergence
from .eagle3 import draft_ids
from .samples import Sample, collate
from .settings import FOUR_STEPS, STANDARD, Distillation, Unrolling
from .taps import tapped
from .training import OnStep, Outcome, train
from .unrolled import unroll


def distil_head(
    target: PreTrainedModel,
    head: LlamaEagle3ForCausalLM,
    samples: Sequence[Sample],
    how: Distillation = STANDARD,
    unrolling: Unrolling = FOUR_STEPS,
    on_step: OnStep | None = None,
    state: Path | None = None,
) -> Outcome:
    """Train `head` in place on the answers of `samples` that have two tokens or more, as `distil` trains a draft model.

    Raises ValueError if there is none: a head's first draft is an answer's second token.
    """
    target.eval()
    usable = [sample for sample in samples if len(sample.ids) - sample.start >= 2]

    def loss_of(batch: Sequence[Sample]) -> torch.Tensor:
        return unrolled_divergence(target, head, batch, how.variation, unrolling)

    return train(head, usable, loss_of, how, on_step, state)


def unrolled_divergence(
    target: PreTrainedModel,
    head: LlamaEagle3ForCausalLM,
    batch: Sequence[Sample],
    variation: float,
    unrolling: Unrolling = FOUR_STEPS,
) -> torch.Tensor:
    """The weighted mean over steps of the divergence from the target, with a gradient for the head only.

    Both distributions are over the draft vocabulary. Rows whose likeliest token the head cannot propose are left out,
    as in EAGLE-3.
    """
    ids, mask = (tensor.to(target.device) for tensor in collate(batch))
    first = min(sample.start for sample in batch)  # the target's row `first` is what the first draft is compared with
    features, logits = read_target(target, head.config.eagle_taps, ids, mask, ids.shape[1] - first)
    rows, lengths = starts(batch)
    rows, lengths = rows.to(head.device), lengths.to(head.device)
    allowed = draft_ids(head)
    whole = len(allowed) == logits.shape[-1]
    total = logits.new_zeros(())
    weights = 0.0
    for step, states in enumerate(unroll(head, ids, features, rows, unrolling.steps)):
        index = torch.nonzero(rows + 2 + step < lengths[:, None], as_tuple=True)
        expected = logits[index[0], rows[index] + 1 + step - first]
        if not whole:
            can = head.model.t2d[expected.argmax(-1)]
            index, expected = (index[0][can], index[1][can]), expected[can][:, allowed]
        if len(expected):
            weight = unrolling.decay**step
            drafted = head.model.lm_head(states[index])
            total = total + weight * row_divergence(expected, drafted, variation).mean()
            weights += weight
        else:
            total = total + 0 * states.sum()  # a batch of short answers: nothing to learn at this step
    return total / max(weights, 1.0)


def read_target(
    target: PreTrainedModel, taps: Sequence[int], ids: torch.Tensor, mask: torch.Tensor, kept: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One pass of the target without a gradient, over right-padded ids, (sequences, tokens).

    Returns the outputs of the tapped layers, concatenated, (sequences, tokens, 3 * width), float32, and the logits of
    the last `kept` tokens, (sequences, kept, vocabulary).
    """
    with torch.no_grad(), tapped(target, taps) as outputs:
        logits = target(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=kept).logits
        return torch.cat(outputs, -1).float(), logits


def starts(batch: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows where drafts of the answers begin, int64, (samples, most rows), and the lengths of the samples.

    The first row reads the answer's first token, the last one proposes its last. Shorter answers are filled up with
    their last row.
    """
    most = max(len(sample.ids) - sample.start for sample in batch) - 1
    rows = torch.tensor(
        [[min(sample.start - 1 + n, len(sample.ids) - 2) for n in range(most)] for sample in batch], dtype=torch.int64
    )
    return rows, torch.tensor([len(sample.ids) for sample in batch])
