"""Requests at random: prompts of many kinds and lengths, settings of all sorts. Same seed, same requests."""

from __future__ import annotations

import inspect
import random
import textwrap
from dataclasses import dataclass, field

from outrider.pipelines.config import GenerationConfig
from outrider.pipelines.text.tokenizer import Tokenizer

UNICODE = "naïve café ☕ 漢字かな交じり文 👩‍👩‍👧 नमस्ते 🇩🇪 ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ e\u0301 \u200d\U0001f3fd "
ORDERS = ("Rename `{}` to `value`.", "Repeat this function.", "Remove the docstring.", "Add a docstring.")
KINDS = ("edit", "edit", "code", "repetitive", "random tokens", "unicode", "continuation", "other beginning")
LENGTHS = (1, 2, 3, 31, 32, 33, 63, 64, 65)  # around the borders of a block


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of an engine; shown by a failing test."""

    prompt: tuple[int, ...] = field(repr=False)
    config: GenerationConfig
    max_new_tokens: int = 20
    answer: int = 0
    kind: str = ""


class Asking:
    """A source of random requests in a model's tokens."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._vocabulary_size = len(tokenizer.vocabulary)
        self._source = inspect.getsource(textwrap).splitlines(keepends=True)
        self._before: list[tuple[int, ...]] = []

    def question(self, max_new_tokens: int = 32, lengths: tuple[int, ...] = LENGTHS) -> Asked:
        rng = self._rng
        kind = rng.choice(KINDS)
        prompt = self.prompt(kind)
        if kind not in ("edit", "other beginning") and rng.random() < 0.4:
            prompt = (prompt * max(lengths))[: rng.choice(lengths)]
        self._before.append(prompt)
        return Asked(prompt, self.config(), rng.randint(1, max_new_tokens), rng.choice([0, 0, 1, 3]), kind)

    def prompt(self, kind: str) -> tuple[int, ...]:
        rng, encode = self._rng, self._tokenizer.encode
        if kind == "random tokens":
            tokens = [rng.randrange(self._vocabulary_size) for _ in range(rng.randint(1, 80))]
        elif kind == "repetitive":
            pattern = [rng.randrange(3, self._vocabulary_size) for _ in range(rng.randint(1, 9))]
            tokens = pattern * rng.randint(2, 12)
        elif kind == "continuation" and self._before:
            begin = rng.choice(self._before)
            tokens = [*begin[: rng.randint(1, len(begin))], *encode(self._code(1))]
        elif kind == "other beginning" and self._before:  # whose later blocks hold the same tokens
            tokens = [rng.randrange(self._vocabulary_size), *max(rng.choices(self._before, k=3), key=len)[1:]]
        elif kind == "unicode":
            tokens = encode("".join(rng.choices(UNICODE, k=rng.randint(1, 60))))
        elif kind == "edit":
            order = rng.choice(ORDERS).format(rng.choice(["self", "text", "chunks"]))
            message = {"role": "user", "content": f"{order}\n\n{self._code(rng.randint(2, 12))}"}
            tokens = encode(self._tokenizer.apply_chat_template([message]), add_special_tokens=False)
        else:
            tokens = encode(self._code(rng.randint(1, 12)))
        return tuple(tokens or [3])

    def config(self) -> GenerationConfig:
        rng = self._rng
        options: dict[str, object] = {
            "num_assistant_tokens": rng.choice([None, rng.randint(1, 16)]),
            "max_ngram_size": rng.randint(1, 5),
            "ignore_eos": rng.random() < 0.7,
            "eos_token_ids": {self._tokenizer.eos_token_id},
        }
        if rng.random() < 0.7:
            options |= {"do_sample": True, "temperature": rng.uniform(0.3, 1.5), "rng_seed": rng.getrandbits(64)}
        for name, value in {
            "top_k": rng.randint(1, 60),
            "top_p": rng.uniform(0.3, 1.0),
            "min_p": rng.uniform(0.0, 0.3),
            "repetition_penalty": rng.uniform(0.8, 1.5),
            "presence_penalty": rng.uniform(-1.0, 1.0),
            "frequency_penalty": rng.uniform(-1.0, 1.0),
            "min_new_tokens": rng.randint(0, 8),
            "logit_bias": {rng.randrange(self._vocabulary_size): rng.uniform(-20, 9) for _ in range(40)},
        }.items():
            if rng.random() < 0.25:
                options[name] = value
        return GenerationConfig(**options)  # type: ignore[arg-type]

    def _code(self, num_lines: int) -> str:
        first = self._rng.randrange(len(self._source) - num_lines)
        return "".join(self._source[first : first + num_lines])
