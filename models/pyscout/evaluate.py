"""Measures the pair on held-out functions: exact edits, perplexity, and how often the target accepts the draft."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from tqdm import tqdm
from transformers import LlamaForCausalLM, LogitsProcessor, PreTrainedTokenizerFast

from . import batches
from .corpus import Function
from .tasks import MIX, Conversation, TaskMaker

EXACT_TASKS = ("rename", "repeat", "undoc")
DRAFT_LENGTH = 5
ACCEPTANCE_TOKENS = 256  # longest answer that acceptance is measured on


def evaluate(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    functions: Sequence[Function],
    maker: TaskMaker,
    cases: int,
    acceptance_cases: int,
) -> dict[str, Any]:
    """All figures of the model card: {"exact": ..., "perplexity": ..., "acceptance": ...}, shares in 0..1."""
    edits = {task: make_cases(functions, maker, task, cases) for task in EXACT_TASKS}
    accepted = {task: make_cases(functions, maker, task, acceptance_cases) for task in MIX}
    return {
        "exact": {task: exact_match(target, tokenizer, found) for task, found in edits.items()},
        "perplexity": {
            name: perplexity(model, tokenizer, make_cases(functions, maker, "plain", 2 * cases))
            for name, model in (("target", target), ("draft", draft))
        },
        "acceptance": {
            task: {
                f"temperature {temperature:g}": acceptance(target, draft, tokenizer, found, temperature)
                for temperature in (0.0, 1.0)
            }
            for task, found in accepted.items()
        },
    }


def make_cases(functions: Sequence[Function], maker: TaskMaker, task: str, count: int) -> list[Conversation]:
    """The first `count` conversations of a task that the functions allow, in the usual wording; always the same."""
    rng = random.Random(f"evaluate {task}")
    found = []
    for function in functions:
        try:
            found.append(maker.conversation(function, task, rng, usual=True))
        except ValueError:
            continue
        if len(found) == count:
            break
    return found


def exact_match(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, cases: Sequence[Conversation]
) -> dict[str, float | int]:
    """Share of greedy answers that equal the expected one to the character, overall and for short functions.

    `alike` also counts answers that differ in white space only.
    """
    equal = alike = short = short_equal = 0
    for group in groups(cases, model.device):
        room = 24 + max(len(tokenizer.encode(case.answer)) for case in group)
        answers, _ = generate(model, [batches.prompt_ids(tokenizer, case) for case in group], room, 0.0, 0)
        for case, ids in zip(group, answers, strict=True):
            text = tokenizer.decode(ids, skip_special_tokens=True)
            hit = text == case.answer
            equal += hit
            alike += re.sub(r"\s+", " ", text) == re.sub(r"\s+", " ", case.answer)
            if len(case.answer) <= 300:
                short += 1
                short_equal += hit
    count = len(cases)
    return {"cases": count, "exact": equal / count, "alike": alike / count} | {
        "short_cases": short,
        "short_exact": short_equal / max(1, short),
    }


def perplexity(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, cases: Sequence[Conversation]
) -> dict[str, float | int]:
    """Perplexity per token of bare held-out functions (their first token is given), and bits per character."""
    model.eval()
    loss = tokens = characters = 0.0
    for group in groups(cases, model.device):
        batch = batches.collate([batches.encode(tokenizer, case) for case in group], tokenizer.pad_token_id)
        with torch.no_grad():
            logits = model(input_ids=batch.ids.to(model.device), use_cache=False).logits
        rows = batch.labels != batches.IGNORED
        loss += nn.functional.cross_entropy(logits.cpu()[rows].float(), batch.labels[rows], reduction="sum").item()
        tokens += int(rows.sum())
        characters += sum(len(case.answer) for case in group)
    return {
        "functions": len(cases),
        "tokens": int(tokens),
        "per_token": math.exp(loss / tokens),
        "bits_per_character": loss / math.log(2) / characters,
    }


def acceptance(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    cases: Sequence[Conversation],
    temperature: float,
) -> dict[str, float | int]:
    """How often the target's own token is the draft's, both adding the same Gumbel noise to their log-probabilities.

    `acceptance`: accepted / drafted at a draft length of 5 (fewer only before the end of the answer).
    `agreement`: the share of all tokens of the answers that the draft would have proposed. `tokens_per_pass` counts
    the target's own token of each pass. `cut_off`: the share of answers that had no end within the limit, most of which
    run in circles.
    """
    accepted = drafted = passes = agreed = tokens = unfinished = 0
    for number, group in enumerate(groups(cases, target.device)):
        prompts = [prompt_of(tokenizer, case) for case in group]
        answers, noise = generate(target, prompts, ACCEPTANCE_TOKENS, temperature, seed=number)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            with torch.no_grad():
                ids = torch.tensor([prompt + answer], device=draft.device)
                logits = draft(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().cpu()
            if temperature > 0:
                logits = (logits / temperature).log_softmax(-1) + noise[: len(answer), row]
            matches = (logits.argmax(-1) == torch.tensor(answer)).tolist()
            unfinished += answer[-1] != target.config.eos_token_id
            agreed += sum(matches)
            tokens += len(matches)
            for kept, proposed in windows(matches, DRAFT_LENGTH):
                accepted, drafted, passes = accepted + kept, drafted + proposed, passes + 1
    return {
        "cases": len(cases),
        "tokens": tokens,
        "acceptance": accepted / max(1, drafted),
        "agreement": agreed / max(1, tokens),
        "tokens_per_pass": tokens / max(1, passes),
        "cut_off": unfinished / len(cases),
    }


def windows(matches: Sequence[bool], draft_length: int) -> Iterator[tuple[int, int]]:
    """(accepted, drafted) for each pass of speculative decoding over an answer whose token t was `matches[t]`."""
    position = 0
    while position < len(matches):
        proposed = min(draft_length, len(matches) - position)
        kept = next((n for n in range(proposed) if not matches[position + n]), proposed)
        yield kept, proposed
        position += kept + 1


def generate(
    model: LlamaForCausalLM, prompts: Sequence[Sequence[int]], room: int, temperature: float, seed: int
) -> tuple[list[list[int]], torch.Tensor]:
    """Answers of at most `room` tokens, the end among them, and the noise used, (tokens, prompts, vocabulary).

    Each token is argmax(log p + Gumbel noise); at temperature 0 there is no noise, and the tensor is empty.
    """
    longest = max(map(len, prompts))
    pad = model.config.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    noise = _Noise(temperature, seed)
    with torch.no_grad():
        output = model.eval().generate(
            input_ids=ids,
            attention_mask=(ids != pad).long(),
            max_new_tokens=room,
            do_sample=False,
            logits_processor=[noise] if temperature > 0 else [],
        )
    end = model.config.eos_token_id
    answers = []
    for row in output[:, longest:].tolist():
        answers.append(row[: row.index(end) + 1] if end in row else row)
    return answers, torch.stack(noise.drawn) if noise.drawn else torch.empty(0)


class _Noise(LogitsProcessor):
    """Turns greedy search into sampling, and keeps the noise."""

    def __init__(self, temperature: float, seed: int) -> None:
        self.temperature = temperature
        self.random = torch.Generator().manual_seed(seed)
        self.drawn: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        uniform = torch.rand(scores.shape, generator=self.random, dtype=torch.float64)
        self.drawn.append(-torch.log(-torch.log(uniform.clamp_min(1e-300))).float())
        return (scores / self.temperature).log_softmax(-1) + self.drawn[-1].to(scores.device)


def prompt_of(tokenizer: PreTrainedTokenizerFast, case: Conversation) -> list[int]:
    """The prompt of a case; for bare code its first third."""
    if case.prompt:
        return batches.prompt_ids(tokenizer, case)
    ids = tokenizer.encode(case.answer)
    return ids[: max(8, len(ids) // 3)]


def groups(cases: Sequence[Conversation], device: torch.device) -> Iterator[list[Conversation]]:
    """Batches of cases of similar length, with a progress bar."""
    size = 256 if device.type == "cuda" else 32
    ordered = sorted(cases, key=lambda case: sum(len(message["content"]) for message in case.messages))
    for start in tqdm(range(0, len(ordered), size), desc=f"evaluating {ordered[0].task}", unit="batch", leave=False):
        yield ordered[start : start + size]
