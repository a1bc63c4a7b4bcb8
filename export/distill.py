"""Distils a draft model for a target, on text that the target generates.

The loss mixes forward KL divergence with total variation. The acceptance rate of a
draft is one minus the total variation distance, and the KL term gives a gradient where the two hardly overlap.
DistillSpec (arXiv 2310.08461) compares the divergences, FastDraft (arXiv 2411.11055) the data.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

SAVE_EVERY = 240.0  # seconds


@dataclass(frozen=True, slots=True)
class Distillation:
    """Settings of a distillation. Raises ValueError for a value out of range.

    variation: weight of total variation in the loss; the rest is forward KL.
    temperatures: sampling temperatures of the target, one batch each in turn; 0 is greedy.
    epochs: how often each generated text is used.
    """

    variation: float = 0.5
    temperatures: tuple[float, ...] = (0.0, 1.0)
    epochs: int = 2
    batch_size: int = 16
    max_new_tokens: int = 256
    learning_rate: float = 1e-3
    warm_up: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.variation <= 1:
            raise ValueError(f"variation is a share in 0..1, not {self.variation}")
        if not self.temperatures or min(self.temperatures) < 0:
            raise ValueError(f"temperatures must be one or more numbers from 0 up, not {self.temperatures}")
        for name in ("epochs", "batch_size", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids of a prompt and the target's answer, which begins at index `start` (the end token included)."""

    ids: list[int] = field(repr=False)
    start: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The loss of every step, and the seconds of training without interruptions."""

    losses: list[float] = field(repr=False)
    seconds: float


def divergence(target_logits: torch.Tensor, draft_logits: torch.Tensor, variation: float) -> torch.Tensor:
    """Mean over rows of `variation * TV(p, q) + (1 - variation) * KL(p || q)`; logits are (rows, vocabulary)."""
    log_p = target_logits.float().log_softmax(-1)
    log_q = draft_logits.float().log_softmax(-1)
    p = log_p.exp()
    kl = (p * (log_p - log_q)).sum(-1)
    tv = (p - log_q.exp()).abs().sum(-1) / 2
    return (variation * tv + (1 - variation) * kl).mean()


def write_samples(
    target: PreTrainedModel, prompts: Iterable[Sequence[int]], how: Distillation = Distillation()
) -> Iterator[Sample]:
    """The target's answers to `prompts` (token ids, none empty), generated in batches; empty answers are dropped."""
    torch.manual_seed(how.seed)
    for number, batch in enumerate(_chunks(prompts, how.batch_size)):
        temperature = how.temperatures[number % len(how.temperatures)]
        yield from _generate(target, batch, temperature, how.max_new_tokens)


def distil(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    samples: Sequence[Sample],
    how: Distillation = Distillation(),
    on_step: Callable[[int, float], Any] | None = None,
    state: Path | None = None,
) -> Outcome:
    """Train `draft` in place on `samples`. After every step, `on_step(step, loss)` is called.

    state: a file that is written every few minutes and at the end. Where it is there already, the same call goes on
        from it.
    Raises ValueError if the vocabularies differ in size or there is no sample. That the ids mean the same in both is
    for the caller to check.
    """
    if target.config.get_text_config().vocab_size != draft.config.get_text_config().vocab_size:
        raise ValueError("target and draft have vocabularies of different sizes")
    if not samples:
        raise ValueError("there are no samples to train on")
    target.eval()
    draft.train()
    optimizer = torch.optim.AdamW(draft.parameters(), lr=how.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    steps = how.epochs * -(-len(samples) // how.batch_size)
    losses: list[float] = []
    before = 0.0  # seconds, of an earlier call
    if state and state.exists():
        saved = torch.load(state, map_location=draft.device, weights_only=True)
        draft.load_state_dict(saved["draft"])
        optimizer.load_state_dict(saved["optimizer"])
        losses, before = saved["losses"], saved["seconds"]
    done, start = len(losses), time.monotonic()
    last_save = start
    rng = random.Random(how.seed)
    with tqdm(total=steps, initial=done, desc="distilling", unit="step") as bar:
        for epoch in range(how.epochs):
            for number, batch in enumerate(_shuffled_batches(samples, how.batch_size, rng)):
                if epoch * steps // how.epochs + number < done:
                    continue
                progress = len(losses) / steps
                rate = min(1.0, (progress + 1 / steps) / how.warm_up if how.warm_up else 1.0, 1 - progress)
                for group in optimizer.param_groups:
                    group["lr"] = how.learning_rate * rate
                loss = batch_divergence(target, draft, batch, how.variation)
                loss.backward()
                nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(loss.item())
                bar.set_postfix(loss=f"{losses[-1]:.3f}")
                bar.update()
                if on_step:
                    on_step(len(losses), losses[-1])
                if state and (len(losses) == steps or time.monotonic() - last_save > SAVE_EVERY):
                    _save(state, draft, optimizer, Outcome(losses, before + time.monotonic() - start))
                    last_save = time.monotonic()
    draft.eval()
    return Outcome(losses, before + time.monotonic() - start)


def batch_divergence(
    target: PreTrainedModel, draft: PreTrainedModel, batch: Sequence[Sample], variation: float
) -> torch.Tensor:
    """The divergence of both models over the answers of a batch, with a gradient for the draft only."""
    longest = max(len(sample.ids) for sample in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.int64)
    mask = torch.zeros(len(batch), longest, dtype=torch.int64)
    rows = torch.zeros(len(batch), longest, dtype=torch.bool)
    for i, sample in enumerate(batch):
        ids[i, : len(sample.ids)] = torch.tensor(sample.ids)
        mask[i, : len(sample.ids)] = 1
        rows[i, sample.start - 1 : len(sample.ids) - 1] = True
    kept = longest - min(sample.start for sample in batch) + 1  # the columns that any answer needs
    logits = []
    for model, gradient in ((target, False), (draft, True)):
        inputs = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
        with torch.set_grad_enabled(gradient):
            output = model(**inputs, use_cache=False, logits_to_keep=kept)
        logits.append(output.logits[rows[:, -kept:].to(model.device)])
    return divergence(logits[0].to(draft.device), logits[1], variation)


def _generate(
    target: PreTrainedModel, prompts: Sequence[Sequence[int]], temperature: float, max_new_tokens: int
) -> Iterator[Sample]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    sampling: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        sampling |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    with torch.no_grad():
        output = target.eval().generate(
            input_ids=ids.to(target.device),
            attention_mask=mask.to(target.device),
            max_new_tokens=max_new_tokens,
            **sampling,
        )
    ends = target.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    for prompt, row in zip(prompts, output[:, longest:].tolist(), strict=True):
        stop = next((t + 1 for t, token in enumerate(row) if token in ends), len(row))
        if stop:
            yield Sample([*prompt, *row[:stop]], len(prompt))


def _chunks(items: Iterable[Sequence[int]], size: int) -> Iterator[list[Sequence[int]]]:
    chunk: list[Sequence[int]] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _save(path: Path, draft: PreTrainedModel, optimizer: torch.optim.Optimizer, outcome: Outcome) -> None:
    partial = path.with_suffix(".partial")
    torch.save({"draft": draft.state_dict(), "optimizer": optimizer.state_dict(), **asdict(outcome)}, partial)
    partial.replace(path)


def _shuffled_batches(samples: Sequence[Sample], size: int, rng: random.Random) -> list[list[Sample]]:
    """Batches of similar length in random order, so that little is padded."""
    by_length = sorted(samples, key=lambda sample: (len(sample.ids), rng.random()))
    batches = [by_length[i : i + size] for i in range(0, len(by_length), size)]
    rng.shuffle(batches)
    return batches
