"""How long a running answer waits while a long prompt is read at the same time.

    python -m tests.benchmark.stall PAIR

An answer is written; after a while a long prompt joins. What counts is the longest time between two tokens of the
answer meanwhile, compared with the time of the whole prompt alone: that is how long the answer would stall if prompts
were not cut.
"""

from __future__ import annotations

import time
from itertools import pairwise
from threading import Event, Thread
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from outrider.pipelines import LLMPipeline
from outrider.pipelines.engine.scheduler import PREFILL_ROWS_BESIDE_DECODING

LATER = 16  # tokens after which the prompt joins
PLAIN = {"mode": "off", "ignore_eos": True, "apply_chat_template": False}


def measure(pipeline: LLMPipeline, prompt: str) -> dict[str, float]:
    """Milliseconds: `alone` and `beside` are medians between two tokens, `longest` is the longest of the latter,
    `prompt_alone` and `prompt_beside` what the prompt takes to its first token."""
    began = time.perf_counter()
    pipeline.generate(prompt, max_new_tokens=1, **PLAIN)
    prompt_alone = time.perf_counter() - began
    pipeline.speculation.forget_prompts()

    joins, times = Event(), []
    reading: list[float] = []

    def read() -> None:
        joins.wait()
        reading.append(time.perf_counter())
        pipeline.generate(prompt, max_new_tokens=1, **PLAIN)
        reading.append(time.perf_counter())

    reader = Thread(target=read)
    reader.start()
    for piece in pipeline.stream("def answer():", max_new_tokens=1000, **PLAIN):
        times += [time.perf_counter()] * len(piece.token_ids)
        if len(times) >= LATER:
            joins.set()
        if len(times) >= 2 * LATER and not reader.is_alive():
            break
    reader.join()
    begin, end = reading
    gaps = [(a, 1e3 * (b - a)) for a, b in pairwise(times)]
    beside = [gap for at, gap in gaps if begin <= at < end]
    return {
        "alone": float(np.median([gap for at, gap in gaps if at < begin])),
        "beside": float(np.median(beside)),
        "longest": max(beside),
        "prompt_alone": 1e3 * prompt_alone,
        "prompt_beside": 1e3 * (end - begin),
    }


def main(
    pair: Annotated[str, typer.Argument(help="A pair folder.")],
    lines: Annotated[int, typer.Option(help="Lines of the prompt that joins, some six tokens each.", min=1)] = 250,
    times: Annotated[int, typer.Option(help="How often to measure.", min=1)] = 5,
) -> None:
    """Measure how long a running answer waits while a long prompt is read."""
    pipeline = LLMPipeline(pair)
    pipeline.warm_up()
    prompt = "\n".join(f"x{n} = {n}" for n in range(lines))
    found = [measure(pipeline, prompt) for _ in range(times)]
    num_tokens = len(pipeline.tokenizer.encode(prompt, False))
    middle = {name: float(np.median([each[name] for each in found])) for name in found[0]}
    Console().print(
        f"Medians of {times}. A token takes {middle['alone']:.0f} ms alone, {middle['beside']:.0f} ms while a prompt "
        f"of {num_tokens} tokens is read in chunks of {PREFILL_ROWS_BESIDE_DECODING}, and at the longest "
        f"{middle['longest']:.0f} ms. The prompt takes {middle['prompt_alone']:.0f} ms alone, "
        f"{middle['prompt_beside']:.0f} ms during the answer."
    )


if __name__ == "__main__":
    typer.run(main)
