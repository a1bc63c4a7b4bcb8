"""Conversations as batches of token ids: right-padded, of similar length, in an order that follows a curriculum."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from .corpus import Function
from .tasks import MIX, WARM_UP, Conversation, TaskMaker
from .tokenizer import ASSISTANT, END, PAD

IGNORED = -100  # label of a token without loss
POOL = 2048  # conversations made at a time and sorted by length
MAX_TOKENS = 1024
LONG_FUNCTION = 720  # characters


@dataclass(frozen=True, slots=True)
class Batch:
    """`ids` and `labels`, int64, (sequences, tokens). `labels[i, t]` is the token at t + 1, or IGNORED."""

    ids: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True, slots=True)
class Stage:
    """What the curriculum gives at one point of the training: tasks, longest function (characters), batch share."""

    mix: dict[str, int]
    longest: int
    batch_share: float


def stage(seen: float) -> Stage:
    """The stage after a share `seen` of the budget: copying short text, then editing ever longer functions."""
    if seen < 0.03:
        return Stage(WARM_UP, 180, 0.4)
    longest = min(LONG_FUNCTION, int(200 + (LONG_FUNCTION - 200) * (seen - 0.03) / 0.5))
    return Stage(MIX, longest, 0.5 if seen < 0.4 else 1.0)


def encode(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, as its chat template renders it, and which of them carry loss.

    Answers carry loss, requests do not; bare code carries loss everywhere and has no role mark.
    """
    end = tokenizer.convert_tokens_to_ids(END)
    ids: list[int] = []
    loss: list[bool] = []
    for message in conversation.messages:
        content = tokenizer.encode(message["content"], add_special_tokens=False)
        if len(conversation.messages) > 1:
            ids.append(tokenizer.convert_tokens_to_ids(f"<|{message['role']}|>"))
            loss.append(False)
        ids += [*content, end]
        loss += [message["role"] == "assistant"] * (len(content) + 1)
    return ids, loss


def collate(examples: Sequence[tuple[list[int], list[bool]]], pad: int) -> Batch:
    """Right-padded batch. With causal attention and no loss on padding, no attention mask is needed."""
    longest = max(len(ids) for ids, _ in examples)
    ids = torch.full((len(examples), longest), pad, dtype=torch.int64)
    labels = torch.full((len(examples), longest), IGNORED, dtype=torch.int64)
    for row, (tokens, loss) in enumerate(examples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        for t in range(len(tokens) - 1):
            if loss[t + 1]:
                labels[row, t] = tokens[t + 1]
    return Batch(ids, labels)


def pool(
    functions: Sequence[Function],
    maker: TaskMaker,
    tokenizer: PreTrainedTokenizerFast,
    index: int,
    seen: float,
    batch_tokens: int,
    size: int,
) -> Iterator[Batch]:
    """The batches of pool number `index`, which depend on nothing but the arguments, so training can be resumed.

    seen: share of the budget, which places the pool in the curriculum.
    size: conversations in it.
    """
    rng = random.Random(f"pool {index}")
    now = stage(seen)
    examples: list[tuple[list[int], list[bool]]] = []
    while len(examples) < size:
        function = functions[rng.randrange(len(functions))]
        if len(function.source) <= now.longest:
            example = encode(tokenizer, maker.draw(function, now.mix, rng))
            if len(example[0]) <= MAX_TOKENS:
                examples.append(example)
    examples.sort(key=lambda example: len(example[0]))
    groups: list[list[tuple[list[int], list[bool]]]] = [[]]
    for example in examples:
        if groups[-1] and len(example[0]) * (len(groups[-1]) + 1) > batch_tokens * now.batch_share:
            groups.append([])
        groups[-1].append(example)
    rng.shuffle(groups)
    pad = tokenizer.convert_tokens_to_ids(PAD)
    return (collate(group, pad) for group in groups)


def prompt_ids(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> list[int]:
    """Token ids of what is shown to the model before the last answer."""
    text = tokenizer.apply_chat_template(list(conversation.prompt), tokenize=False, add_generation_prompt=True)
    assert text.endswith(ASSISTANT)
    return tokenizer.encode(text, add_special_tokens=False)
