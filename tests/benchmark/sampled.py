"""Whether text that OpenVINO GenAI samples with drafts follows the distribution that it samples without.

    python -m tests.benchmark.sampled

The embedded pair answers one request many times, each time with another seed. How often answers begin in each way is
counted for plain decoding and for each way to draft, and a chi-square test says how likely chance alone would make
the counts differ so much: anything above a percent is no news, zero means another distribution.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import chi2_contingency

from outrider.app.bench.task import Task
from outrider.models import embedded_pair
from outrider.pipelines import Pair, Tokenizer
from outrider.pipelines.privacy import keep_private
from outrider.pipelines.text.prompt import encode_prompt

from .peers.base import Question, Setup
from .peers.genai import GenAI

REQUEST = "Repeat this function:\ndef area(width, height):\n    return width * height"
TEMPERATURE = 1.6  # at which two answers of five leave the likeliest text within a dozen tokens
NUM_TOKENS = 24
BEGINNINGS = (1, 2, 4, 8, 12)
FEWEST = 10  # answers of a beginning, in both together, for it to be counted by itself


def p_value(some: Sequence[tuple[int, ...]], others: Sequence[tuple[int, ...]], length: int) -> float:
    """The probability that beginnings of `length` tokens differ as much as these do, were they of one distribution."""
    counts = [Counter(answer[:length] for answer in answers) for answers in (some, others)]
    common = [beginning for beginning, count in (counts[0] + counts[1]).items() if count >= FEWEST]
    rare = [sum(count.values()) - sum(count[beginning] for beginning in common) for count in counts]
    rows = [[*(count[beginning] for beginning in common), left] for count, left in zip(counts, rare, strict=True)]
    table = np.array(rows)[:, np.sum(rows, 0) > 0]
    return float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0


def answers_of(peer: GenAI, mode: str, prompt: tuple[int, ...], eos: int, seeds: range) -> Iterator[tuple[int, ...]]:
    for seed in track(seeds, mode, transient=True):
        options = {"max_new_tokens": NUM_TOKENS, "do_sample": True, "temperature": TEMPERATURE, "rng_seed": seed}
        question = Question(Task("sampled", (REQUEST,), options), (prompt,), options, eos)
        yield peer.answer(mode, question).token_ids[0]


def main(count: Annotated[int, typer.Option("--answers", help="Answers in each mode.", min=100)] = 2000) -> None:
    """Compare what OpenVINO GenAI samples with drafts and without."""
    keep_private()
    pair = Pair.open(embedded_pair())
    tokenizer = Tokenizer(pair.target)
    assert tokenizer.eos_token_id is not None
    prompt = tuple(encode_prompt(REQUEST, None, tokenizer, True))
    with tempfile.TemporaryDirectory() as scratch:
        setup = Setup(pair.path, pair.path.parent / "checkpoints", Path(scratch), os.cpu_count() or 1, 1024, "f32")
        peer = GenAI(setup)
        found, console = {}, Console()
        for number, mode in enumerate(peer.modes):
            seeds = range(number * count, (number + 1) * count)
            found[mode] = [*answers_of(peer, mode, prompt, tokenizer.eos_token_id, seeds)]
    table = Table(title=f"{count} answers at temperature {TEMPERATURE}", title_justify="left", box=None)
    for title in ("", *(f"{length} tokens" for length in BEGINNINGS)):
        table.add_column(title, justify="right" if title else "left")
    plain = found.pop(peer.modes[0])
    for mode, answers in found.items():
        table.add_row(mode, *(f"{p_value(plain, answers, length):.2g}" for length in BEGINNINGS))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
