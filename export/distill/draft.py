"""Distils a draft model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from .divergence import divergence
from .samples import Sample, collate
from .settings import STANDARD, Distillation
from .training import OnStep, Outcome, train


def distil(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    samples: Sequence[Sample],
    how: Distillation = STANDARD,
    on_step: OnStep | None = None,
    state: Path | None = None,
) -> Outcome:
    """Train `draft` in place on `samples`. After every step, `on_step(step, loss)` is called.

    state: a file that is written every few minutes and at the end. If it exists already, the same call continues from
        it. Raises ValueError if the vocabularies differ in size or there is no sample. That the ids mean the same in
        both is for the caller to check.
    """
    if target.config.get_text_config().vocab_size != draft.config.get_text_config().vocab_size:
        raise ValueError("target and draft have vocabularies of different sizes")
    target.eval()
    return train(
        draft, samples, lambda batch, _: batch_divergence(target, draft, batch, how.variation), how, on_step, state
    )


def batch_divergence(
    target: PreTrainedModel, draft: PreTrainedModel, batch: Sequence[Sample], variation: float
) -> torch.Tensor:
    """The divergence of both models over the answers of a batch, with a gradient for the draft only."""
    ids, mask = collate(batch)
    rows = torch.zeros_like(ids, dtype=torch.bool)
    for i, sample in enumerate(batch):
        rows[i, sample.start - 1 : len(sample.ids) - 1] = True
    kept = ids.shape[1] - min(sample.start for sample in batch) + 1  # the columns that any answer needs
    logits = []
    for model, gradient in ((target, False), (draft, True)):
        inputs = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
        with torch.set_grad_enabled(gradient):
            output = model(**inputs, use_cache=False, logits_to_keep=kept)
        logits.append(output.logits[rows[:, -kept:].to(model.device)])
    return divergence(logits[0].to(draft.device), logits[1], variation)
