"""Text that the target generates, for a draft to learn from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from ..quiet import quiet
from .settings import STANDARD, Distillation

T = TypeVar("T")

# Options whose values in the generation configuration of a target would fail here, cut answers off, or slow them down.
PLAIN = {
    "return_dict_in_generate": False,
    "stop_strings": None,  # which only a tokenizer could find
    "prompt_lookup_num_tokens": None,
    "penalty_alpha": None,
    "max_time": None,
    "use_cache": True,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids of a prompt and the target's answer, which begins at index `start` (the end token included)."""

    ids: list[int] = field(repr=False)
    start: int


def write_samples(
    target: PreTrainedModel, prompts: Sequence[Sequence[int]], how: Distillation = STANDARD
) -> Iterator[Sample]:
    """The target's answers to `prompts` (token ids, none empty), generated in batches; empty answers are dropped.

    Prompts get the temperatures in turn, so that those of one temperature are neither shorter nor fewer than others.
    """
    torch.manual_seed(how.seed)
    for place, temperature in enumerate(how.temperatures):
        for batch in chunks(prompts[place :: len(how.temperatures)], how.batch_size):
            yield from _generate(target, batch, temperature, how.max_new_tokens)


def shuffled_batches(samples: Sequence[Sample], size: int, rng: random.Random) -> list[Sequence[Sample]]:
    """Batches of similar length in random order, so that little is padded."""
    by_length = sorted(samples, key=lambda sample: (len(sample.ids), rng.random()))
    batches = chunks(by_length, size)
    rng.shuffle(batches)
    return batches


def collate(batch: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids padded on the right with 0, and the attention mask; both int64, (samples, longest)."""
    longest = max(len(sample.ids) for sample in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sample in enumerate(batch):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        mask[row, : len(sample.ids)] = 1
    return ids, mask


def _generate(
    target: PreTrainedModel, prompts: Sequence[Sequence[int]], temperature: float, max_new_tokens: int
) -> Iterator[Sample]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    options: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    options |= PLAIN
    with torch.no_grad(), quiet():
        output = target.eval().generate(
            input_ids=ids.to(target.device),
            attention_mask=mask.to(target.device),
            max_new_tokens=max_new_tokens,
            **options,
        )
    ends = target.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    for prompt, row in zip(prompts, output[:, longest:].tolist(), strict=True):
        stop = next((t + 1 for t, token in enumerate(row) if token in ends), len(row))
        if stop:
            yield Sample([*prompt, *row[:stop]], len(prompt))


def chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """The items, `size` at a time."""
    return [items[i : i + size] for i in range(0, len(items), size)]
