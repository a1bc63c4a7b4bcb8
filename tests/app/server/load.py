"""Many clients that ask at once, and know what they should be answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import openai

from outrider.pipelines import LLMPipeline
from outrider.pipelines.text.token_bytes import TokenBytes

from .serving import MODEL, user

MODES = ("off", "lookup", "suffix", "recycling", "draft", "head", "chained", "auto")
NAMES = ("area", "volume", "merge", "split")
LONGEST_S = 300.0  # that a request may take on a busy machine
LEAVING = 0.05  # share of requests whose client goes away


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and the tokens and the end that plain decoding gives it."""

    prompt: str
    temperature: float
    seed: int
    max_tokens: int
    tokens: tuple[str, ...]
    finish: str


@dataclass(slots=True)
class Outcome:
    """answered: requests by mode. left: those whose client went away. wrong: what was not as it should be."""

    answered: Counter[str] = field(default_factory=Counter)
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    tokens: int = 0
    seconds: list[float] = field(default_factory=list)


def questions(pipeline: LLMPipeline, count: int, rng: random.Random) -> list[Question]:
    """Edits of small functions, greedy and sampled, and what plain decoding answers them, one at a time."""
    names, made = TokenBytes.read(pipeline.tokenizer).of, []
    for _ in range(count):
        name, other = rng.sample(NAMES, 2)
        order = rng.choice(["Repeat this function.", f"Rename `{name}` to `{other}`.", "Add a docstring."])
        prompt = f"{order}\n\ndef {name}(first, second):\n    return first {rng.choice('+-*/')} second\n"
        temperature, seed, max_tokens = rng.choice([0.0, 0.7, 1.3]), rng.getrandbits(32), rng.randint(1, 48)
        answer = pipeline.generate(
            prompt, mode="off", do_sample=temperature > 0, temperature=temperature, rng_seed=seed,
            max_new_tokens=max_tokens,
        ).generations[0]  # fmt: skip
        tokens = tuple(names[token].decode(errors="backslashreplace") for token in answer.token_ids)
        made.append(Question(prompt, temperature, seed, max_tokens, tokens, answer.finish_reason))
    return made


async def load(url: str, asked: list[Question], clients: int, requests: int, seed: int) -> Outcome:
    """So many clients ask so many questions each, one after the other.

    In all modes, streamed and not, with log-probabilities, so that tokens can be compared one by one.
    """
    outcome = Outcome()

    async def ask(number: int) -> None:
        rng = random.Random(seed * clients + number)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=LONGEST_S) as client:
            for _ in range(requests):
                began = time.monotonic()
                try:
                    await _ask(client, rng.choice(asked), rng, outcome)
                except openai.OpenAIError as error:
                    outcome.wrong.append(repr(error))
                outcome.seconds.append(time.monotonic() - began)

    await asyncio.gather(*(ask(number) for number in range(clients)))
    return outcome


async def _ask(client: openai.AsyncOpenAI, question: Question, rng: random.Random, outcome: Outcome) -> None:
    mode, streams = rng.choice(MODES), rng.random() < 0.5
    options: dict[str, Any] = {
        "model": MODEL, "messages": user(question.prompt), "temperature": question.temperature, "seed": question.seed,
        "max_tokens": question.max_tokens, "logprobs": True, "extra_body": {"speculation": mode},
    }  # fmt: skip
    if streams:
        tokens, finish = [], None
        stream = await client.chat.completions.create(**options, stream=True)
        leaves = rng.random() < LEAVING
        async for chunk in stream:
            if leaves and tokens:
                await stream.close()
                outcome.left += 1
                return
            choice = chunk.choices[0]
            tokens += [entry.token for entry in (choice.logprobs and choice.logprobs.content) or ()]
            finish = choice.finish_reason
    else:
        answer = await client.chat.completions.create(**options)
        choice = answer.choices[0]
        tokens = [entry.token for entry in choice.logprobs.content]
        finish = choice.finish_reason
    outcome.answered[mode] += 1
    outcome.tokens += len(tokens)
    if (tuple(tokens), finish) != (question.tokens, question.finish):
        outcome.wrong.append(f"{question} in mode {mode}: {tokens}, {finish}")
