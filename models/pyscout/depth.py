"""To what depth the drafts of heads, and of the draft model for comparison, are accepted on held-out functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from outrider.export.distill import Sample
from outrider.export.distill.head import read_target, starts
from outrider.export.distill.samples import collate
from outrider.export.distill.trainable import TrainableHead

from .corpus import Function
from .evaluate import ACCEPTANCE_TOKENS, generate, groups, make_cases, prompt_of
from .tasks import MIX, Conversation, TaskMaker

DEPTH = 5


def evaluate_heads(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM | None,
    heads: Mapping[str, TrainableHead],
    tokenizer: PreTrainedTokenizerFast,
    functions: Sequence[Function],
    maker: TaskMaker,
    cases: int,
) -> dict[str, Any]:
    """{task: {"temperature 0": {NAME: ..., "draft": ...}, ...}} with the figures of `depths`."""
    return {
        task: {
            f"temperature {temperature:g}": depths(target, draft, heads, tokenizer, found, temperature)
            for temperature in (0.0, 1.0)
        }
        for task, found in ((task, make_cases(functions, maker, task, cases)) for task in MIX)
    }


def depths(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM | None,
    heads: Mapping[str, TrainableHead],
    tokenizer: PreTrainedTokenizerFast,
    cases: Sequence[Conversation],
    temperature: float,
) -> dict[str, Any]:
    """The `figures` of the heads and of the draft model on the same answers of the target, and what those are.

    All add the same Gumbel noise to their log-probabilities.
    """
    found: dict[str, list[torch.Tensor]] = {name: [] for name in (*heads, *(() if draft is None else ("draft",)))}
    samples: list[Sample] = []
    unfinished = 0
    for number, group in enumerate(groups(cases, target.device)):
        prompts = [prompt_of(tokenizer, case) for case in group]
        answers, noise = generate(target, prompts, ACCEPTANCE_TOKENS, temperature, seed=number)
        batch = [Sample(prompt + answer, len(prompt)) for prompt, answer in zip(prompts, answers, strict=True)]
        unfinished += sum(answer[-1] != target.config.eos_token_id for answer in answers)
        noise = noise.transpose(0, 1) if temperature > 0 else noise
        for name, head in heads.items():
            found[name] += head_matches(target, head, batch, noise, temperature)
        if draft is not None:
            found["draft"] += draft_matches(draft, batch, noise, temperature)
        samples += batch
    return {
        "cases": len(cases),
        "tokens": sum(len(sample.ids) - sample.start for sample in samples),
        "cut_off": unfinished / len(cases),
        **{name: figures(matches) for name, matches in found.items()},
    }


@torch.no_grad()
def head_matches(
    target: PreTrainedModel, head: TrainableHead, batch: Sequence[Sample], noise: torch.Tensor, temperature: float
) -> list[torch.Tensor]:
    """For each sample, whether draft k from the answer's token p is the target's p + 1 + k; bool, (tokens - 1, 5), or
    fewer columns for a head that drafts fewer.

    The head is fed the answer instead of its own drafts. Up to the first draft that differs both are the same, and what
    comes after it is never accepted. Drafts after the end of an answer count as different.

    noise: (samples, tokens, vocabulary), of each token of the answers; unused at temperature 0.
    """
    ids, mask = (tensor.to(target.device) for tensor in collate(batch))
    features, _ = read_target(target, head.taps, ids, mask, 1)
    rows, lengths = starts(batch)
    allowed = head.vocabulary.cpu()
    columns = []
    for step, states in enumerate(head.drafts(ids, features, rows.to(ids.device), DEPTH)):
        logits = head.project(states).float().cpu()
        places = torch.arange(rows.shape[1]) + 1 + step  # of the drafted token in the answer
        if temperature > 0:
            places = places.clamp(max=noise.shape[1] - 1)
            logits = (logits / temperature).log_softmax(-1) + noise[:, places][..., allowed]
        drafted = allowed[logits.argmax(-1)]
        index = rows + 2 + step
        actual = ids.cpu().gather(1, index.clamp(max=ids.shape[1] - 1))
        columns.append((drafted == actual) & (index < lengths[:, None]))
    found = torch.stack(columns, -1)
    return [found[row, : len(sample.ids) - sample.start - 1] for row, sample in enumerate(batch)]


@torch.no_grad()
def draft_matches(
    draft: PreTrainedModel, batch: Sequence[Sample], noise: torch.Tensor, temperature: float
) -> list[torch.Tensor]:
    """As `head_matches`, for a draft model."""
    found = []
    for row, sample in enumerate(batch):
        answer = torch.tensor(sample.ids[sample.start :])
        ids = torch.tensor([sample.ids], device=draft.device)
        logits = draft(input_ids=ids, use_cache=False).logits[0, sample.start - 1 : -1].float().cpu()
        if temperature > 0:
            logits = (logits / temperature).log_softmax(-1) + noise[row, : len(answer)]
        hits = torch.cat([logits.argmax(-1) == answer, torch.zeros(DEPTH, dtype=torch.bool)])
        found.append(hits[1:].unfold(0, DEPTH, 1)[: len(answer) - 1])
    return found


def figures(matches: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Shares of the drafts of answers, from `head_matches` or `draft_matches`.

    by_depth: draft k was accepted, and all before it, of all places in the answers with k tokens to come.
    acceptance: accepted / drafted at a draft length of 5, or as many as a head drafts; fewer only before the end of the
        answer.
    tokens_per_pass: with the target's own token of each pass.
    """
    kept = [match.int().cumprod(1) for match in matches]
    depth = kept[0].shape[1]
    accepted = sum((match.sum(0) for match in kept), torch.zeros(depth, dtype=torch.int64))
    places = sum(len(match) for match in kept)
    possible = [sum(max(0, len(match) - k) for match in kept) for k in range(depth)]
    passes = taken = drafted = 0
    for match in kept:
        position = 0
        while position < len(match):
            length = int(match[position].sum())
            drafted += min(depth, len(match) - position)
            passes, taken, position = passes + 1, taken + length, position + length + 1
    return {
        "by_depth": [int(count) / max(1, of) for count, of in zip(accepted, possible, strict=True)],
        "acceptance": taken / max(1, drafted),
        "tokens_per_pass": places / max(1, passes),
    }
