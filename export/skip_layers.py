"""Which layers of a target its drafts skip, chosen by measurement (SWIFT, arXiv 2410.06916)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.pipelines.errors import InvalidOption
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.pair import Skipping, context_length, num_layers
from outrider.pipelines.model.split_model import SplitModel
from outrider.pipelines.model.target import Window
from outrider.pipelines.text.prompt import encode_prompt
from outrider.pipelines.text.tokenizer import Tokenizer

CODE = (
    'def area(width, height):\n    """Return the area."""\n    size = width * height\n    return size\n',
    "def read(path):\n    with open(path) as file:\n        text = file.read()\n    return text.splitlines()\n",
    "def total(items):\n    count = 0\n    for item in items:\n        count += item.price\n    return count\n",
)
PROMPTS = (
    "Write a function that reverses a list, and explain it.",
    "What is the capital of France, and what is it known for?",
    "Tell a short story about a lighthouse.",
    f"Rename `size` to `result`.\n\n{CODE[0]}",
    f"Remove the docstring.\n\n{CODE[0]}",
    f"Rename `text` to `lines`.\n\n{CODE[1]}",
    f"Complete this function:\n\n{CODE[1][:40]}",
    f"Repeat this function:\n\n{CODE[2]}",
    f"Complete this function:\n\n{CODE[2][:50]}",
)
NEW_TOKENS = 64
LONGEST = 8  # tokens of a draft
TRIED = 4  # layers that are tried in each step
CIRCLE = 4  # tokens that an answer repeats
FEWEST = 8  # drafts to judge by


@dataclass(frozen=True, slots=True)
class _Text:
    """A prompt with the target's greedy answer, which begins after position `start`, in blocks of the cache."""

    tokens: list[int]
    start: int
    blocks: range


def choose_layers(target: Path, properties: Mapping[str, Any]) -> dict[str, Any]:
    """What pair.json says of the layers that drafts skip: those with the highest expected speedup, none without one.

    The target's own greedy answers, up to where they go in circles, are drafted LONGEST tokens at a time. Layers are
    left out one by one, in each step the best of the TRIED that cost least alone, as long as the speedup grows. A
    drafted token is taken to cost the share of the weights that it reads; no time is measured, so that the result does
    not depend on the machine's load.

    Raises what SplitModel raises.
    """
    number, texts, eos = num_layers(target), _prompts(target), Tokenizer(target).eos_token_id
    layers = tuple(range(1, number))
    if not layers:
        raise InvalidOption(f"{target} has a single layer: leave out --skip-layers.")
    model = SplitModel(target, texts[-1].blocks.stop, Skipping(layers), properties, exact=False, is_apart=True)
    for text in texts:
        _write(model, text, eos)
    speedups: dict[tuple[int, ...], float] = {}

    def speedup(skipped: Collection[int]) -> float:
        key = tuple(sorted(skipped))
        if key not in speedups:
            model.skip(key)
            speedups[key] = expected_speedup(_accepted(model, texts), model.draft_share)
        return speedups[key]

    order = sorted(layers, key=lambda layer: -speedup([layer]))
    chosen: list[int] = []
    best = 1.0
    while left := [layer for layer in order if layer not in chosen][:TRIED]:
        following = max(left, key=lambda layer: speedup([*chosen, layer]))
        if speedup([*chosen, following]) <= best:
            break
        chosen.append(following)
        best = speedup(chosen)
    tried = {" ".join(map(str, skipped)): round(value, 3) for skipped, value in speedups.items()}
    found = {"skip_layers": sorted(chosen)} if chosen else {}
    return {**found, "expected_speedup_by_skipped_layers": tried}


def expected_speedup(accepted: Sequence[float], share: float) -> float:
    """How many tokens the best length of drafts gives in the time of a pass; 1 without drafts.

    accepted: for each token of a draft, the probability that all up to it are accepted.
    share: the time of a drafted token over that of a pass.
    """
    tokens, best = 1.0, 1.0
    for length, probability in enumerate(accepted, 1):
        tokens += probability
        best = max(best, tokens / (1 + length * share))
    return best


def _prompts(target: Path) -> list[_Text]:
    """The prompts as the model reads them, each with blocks that have room for an answer."""
    tokenizer, texts, end = Tokenizer(target), list[_Text](), 0
    room = context_length(target) - NEW_TOKENS
    if room < 1:
        raise InvalidOption(f"{target} reads too few tokens to try which layers drafts can skip: name them.")
    for prompt in PROMPTS:
        tokens = encode_prompt(prompt, None, tokenizer, use_template=True)[-room:]
        begin, end = end, end - (-(len(tokens) + NEW_TOKENS) // BLOCK_SIZE)
        texts.append(_Text(tokens, len(tokens) - 1, range(begin, end)))
    return texts


def _write(model: SplitModel, text: _Text, eos: int | None) -> None:
    """Append the greedy answer, of NEW_TOKENS tokens at most, without what it repeats at its end: that is easily
    predicted, and small models never stop repeating it."""
    cached, seen = 0, set[tuple[int, ...]]()
    for _ in range(NEW_TOKENS):
        (logits,) = model.forward([Window(text.tokens[cached:], cached, text.blocks)])
        cached = len(text.tokens)
        text.tokens.append(token := int(logits[-1].argmax()))
        last = tuple(text.tokens[text.start + 1 :][-CIRCLE:])
        if token == eos or last in seen:
            return
        seen.add(last)


def _accepted(model: SplitModel, texts: Sequence[_Text]) -> list[float]:
    """For each token of a draft, the share of drafts that are accepted up to it; none if there are too few drafts.

    A draft is fed the answer itself, in one pass over its rows, each of which reads those before it as the draft has
    left them. The last drafts come first, since those before them do not read what they leave.
    """
    runs: list[NDArray[np.bool_]] = []
    for place in reversed(range(0, NEW_TOKENS - LONGEST + 1, LONGEST)):
        windows, following = [], []
        for text in texts:
            begin = text.start + place
            if begin + LONGEST >= len(text.tokens):
                continue
            windows.append(Window(text.tokens[begin : begin + LONGEST], begin, text.blocks, LONGEST))
            following.append(text.tokens[begin + 1 : begin + LONGEST + 1])
        for logits, tokens in zip(model.draft(windows) if windows else (), following, strict=True):
            runs.append(np.logical_and.accumulate(logits.argmax(axis=1) == tokens))
    model.forget_drafts()
    for text in texts:  # again what the whole model leaves
        model.forward([Window(text.tokens[text.start : -1], text.start, text.blocks)])
    shares: list[float] = np.mean(runs, axis=0).tolist() if len(runs) >= FEWEST else []
    return shares
