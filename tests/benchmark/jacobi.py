"""Jacobi decoding (Santilli et al., arXiv 2305.10427), for comparison: how many tokens does a pass give?

    python -m tests.benchmark.jacobi PAIR

Greedy. The guesses of a pass are what the target wrote after those of the previous pass, right or wrong.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from outrider.app.bench.prompts import shipped_tasks
from outrider.app.bench.task import first_of_each
from outrider.models.pulled import find_pair
from outrider.pipelines import Pair, Tokenizer
from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.model.target import Window, prefill
from outrider.pipelines.model.tuning import load_target
from outrider.pipelines.text.prompt import encode_prompt

FAMILIES = ("edit", "complete", "chat")
CONTEXT = 2048


def decode(model: PagedModel, prompt: list[int], num_tokens: int, num_guesses: int) -> tuple[list[int], int]:
    """The tokens of a greedy answer, and the passes that they took after the first."""
    blocks = range(CONTEXT // BLOCK_SIZE)
    answer, passes = [int(prefill(model, prompt, 0, blocks).argmax())], 0
    guesses = [answer[0]] * num_guesses
    while len(answer) < num_tokens:
        start, window = len(prompt) + len(answer) - 1, [answer[-1], *guesses]
        written = model.forward([Window(window, start, blocks, len(window))])[0].argmax(axis=1).tolist()
        right = next((i for i, guess in enumerate(guesses) if guess != written[i]), num_guesses)
        answer += written[: right + 1]
        guesses, passes = [*written[right + 1 :], *written[-1:] * (right + 1)][:num_guesses], passes + 1
    return answer[:num_tokens], passes


def main(
    pair: Annotated[Path, typer.Argument(parser=find_pair)],
    prompts_per_family: int = 5,
    num_tokens: int = 64,
    num_guesses: int = 7,
) -> None:
    """Print the tokens that a pass gives, as medians over the prompts of each family."""
    opened = Pair.open(pair)
    tokenizer = Tokenizer(opened.target)
    model, _ = load_target(opened.target, CONTEXT // BLOCK_SIZE, opened.properties, exact=True)
    for family in FAMILIES:
        rates = []
        for task in first_of_each([task for task in shipped_tasks() if task.family == family], prompts_per_family):
            prompt = encode_prompt(task.prompts[0], None, tokenizer, True)
            plain, _ = decode(model, prompt, num_tokens, 0)
            answer, passes = decode(model, prompt, num_tokens, num_guesses)
            assert answer == plain
            rates.append((num_tokens - 1) / passes)
        typer.echo(f"{family}: {median(rates):.2f} tokens a pass")


if __name__ == "__main__":
    typer.run(main)
