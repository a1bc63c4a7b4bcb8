"""Distils a head of any kind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from .divergence import row_divergence
from .samples import Sample, collate
from .settings import FOUR_STEPS, STANDARD, Distillation, Unrolling
from .taps import tapped
from .trainable import TrainableHead
from .training import OnStep, Outcome, train


def distil_head(
    target: PreTrainedModel,
    head: TrainableHead,
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

    def loss_of(batch: Sequence[Sample], rng: random.Random) -> torch.Tensor:
        return unrolled_divergence(target, head, batch, how.variation, unrolling, rng)

    return train(head, usable, loss_of, how, on_step, state)


def unrolled_divergence(
    target: PreTrainedModel,
    head: TrainableHead,
    batch: Sequence[Sample],
    variation: float,
    unrolling: Unrolling = FOUR_STEPS,
    rng: random.Random | None = None,
) -> torch.Tensor:
    """The weighted mean over steps of the divergence from the target, with a gradient for the head only.

    Both distributions are over the head's vocabulary. Rows whose likeliest token the head cannot propose are left out,
    as in EAGLE-3. A head that has fewer steps than `unrolling` learns those.
    """
    ids, mask = (tensor.to(target.device) for tensor in collate(batch))
    first = min(sample.start for sample in batch)  # the target's row `first` is what the first draft is compared with
    features, logits = read_target(target, head.taps, ids, mask, ids.shape[1] - first)
    rows, lengths = starts(batch, unrolling.places, rng)
    rows, lengths = rows.to(ids.device), lengths.to(ids.device)
    allowed = head.vocabulary
    steps = min(unrolling.steps, head.most_steps or unrolling.steps)
    whole = len(allowed) == logits.shape[-1]
    total = logits.new_zeros(())
    weights = 0.0
    for step, states in enumerate(head.drafts(ids, features, rows, steps)):
        index = torch.nonzero(rows + 2 + step < lengths[:, None], as_tuple=True)
        expected = logits[index[0], rows[index] + 1 + step - first]
        if not whole:
            can = torch.isin(expected.argmax(-1), allowed)
            index, expected = (index[0][can], index[1][can]), expected[can][:, allowed]
        if len(expected):
            weight = unrolling.decay**step
            drafted = head.project(states[index])
            total = total + weight * row_divergence(expected, drafted, variation).mean()
            weights += weight
        else:
            total = total + 0 * states.sum()  # a batch of short answers: nothing to learn at this step
    return total / max(weights, 1.0)


def read_target(
    target: PreTrainedModel, taps: Sequence[int], ids: torch.Tensor, mask: torch.Tensor, kept: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One pass of the target without a gradient, over right-padded ids, (sequences, tokens).

    Returns the outputs of the tapped layers, concatenated, (sequences, tokens, taps * width), float32, and the logits
    of the last `kept` tokens, (sequences, kept, vocabulary).
    """
    with torch.no_grad(), tapped(target, taps) as outputs:
        logits = target(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=kept).logits
        return torch.cat(outputs, -1).float(), logits


def starts(
    batch: Sequence[Sample], places: int | None = None, rng: random.Random | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows where drafts of the answers begin, int64, (samples, most rows), and the lengths of the samples.

    The first row reads the answer's first token, the last one proposes its last. With `rng`, at most `places` of them
    are drawn. Shorter answers are padded with a row that proposes nothing.
    """
    rows: list[Sequence[int]] = [range(sample.start - 1, len(sample.ids) - 2) for sample in batch]
    if places is not None and rng is not None:
        rows = [sorted(rng.sample(each, min(places, len(each)))) for each in rows]
    most = max(map(len, rows))
    filled = [
        [*each, *[len(sample.ids) - 2] * (most - len(each))] for sample, each in zip(batch, rows, strict=True)
    ]
    return torch.tensor(filled, dtype=torch.int64), torch.tensor([len(sample.ids) for sample in batch])
