"""Measurement: runs every mode on every task, interleaved."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outrider.pipelines import EXACT, Generation, LLMPipeline, OutriderError
from outrider.pipelines.config import PARAMETERS

from .figures import Figures
from .task import BadPrompts, Task

PLAIN = "off"


class Pipeline(Protocol):
    """The part of LLMPipeline that is used here."""

    def generate(self, inputs: Any, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One task in one mode, with an answer for each of its prompts."""

    task: Task
    mode: str
    generations: tuple[Generation, ...]
    figures: Figures
    acceptance: str = EXACT

    @property
    def lossy(self) -> bool:
        """Whether drafts may have changed the answers."""
        return self.acceptance != EXACT

    @property
    def label(self) -> str:
        return f"{self.mode}, lossy ({self.acceptance})" if self.lossy else self.mode

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        return tuple(generation.token_ids for generation in self.generations)


def in_turns(choices: Sequence[str], seed: int, number: int) -> list[str]:
    """The choices in random order for task `number`, so that none always profits from the one before it."""
    return random.Random(f"{seed} {number}").sample(choices, len(choices))


def check_tasks(
    tasks: Sequence[Task], pipeline: LLMPipeline, modes: Sequence[str], max_new_tokens: int, acceptance: str
) -> None:
    """Raises BadPrompts with the place of a task that the pipeline would refuse, before anything is measured."""
    for task in tasks:
        options = [_options(task, mode, max_new_tokens, acceptance) for mode in modes]
        try:
            for prompt in task.prompts:
                for each in options:
                    pipeline.stream(prompt if isinstance(prompt, str) else list(prompt), **each).close()
        except OutriderError as error:
            raise BadPrompts(f"{task.place or task.family}: {error}") from error


def measure(
    pipeline: Pipeline,
    forget_prompts: Callable[[], None],
    tasks: Sequence[Task],
    modes: Sequence[str],
    max_new_tokens: int,
    seed: int,
    announce: Callable[[str], None] = lambda text: None,
    acceptance: str = EXACT,
) -> Iterator[tuple[Run, ...]]:
    """For each task its runs, one for each of `modes`, in the order of `modes`.

    `forget_prompts` empties the cache before each run, so that no mode finds the prompt read by the one before it, or
    its tokens in the table of token recycling.
    `acceptance` is the rule of all modes that draft.
    """
    for number, task in enumerate(tasks):
        runs = {}
        for mode in in_turns(modes, seed, number):
            announce(f"{task.family}, {mode}")
            forget_prompts()
            runs[mode] = _run(pipeline, task, mode, max_new_tokens, acceptance)
        yield tuple(runs[mode] for mode in modes)


def _run(pipeline: Pipeline, task: Task, mode: str, max_new_tokens: int, acceptance: str) -> Run:
    options = _options(task, mode, max_new_tokens, acceptance)
    prompt = task.prompts[0]
    inputs = list(task.prompts) if task.is_batch else prompt if isinstance(prompt, str) else list(prompt)
    began = time.perf_counter()
    generations = pipeline.generate(inputs, **options).generations
    ended = time.perf_counter()
    traces = [generation.trace for generation in generations]
    return Run(task, mode, tuple(generations), Figures.of(traces, began, ended), options.get("acceptance", EXACT))


def _options(task: Task, mode: str, max_new_tokens: int, acceptance: str) -> dict[str, Any]:
    """Those with which a task is answered."""
    given = plain_options(task) if mode == PLAIN else task.options
    options = {"max_new_tokens": max_new_tokens, **given, "mode": mode}
    return options if mode == PLAIN or acceptance == EXACT else {**options, "acceptance": acceptance}


def plain_options(task: Task) -> dict[str, Any]:
    """Those of plain decoding, which has no rule for drafts, and so no parameters of one."""
    return {name: value for name, value in task.options.items() if name not in PARAMETERS}


def differing(runs: Sequence[Run]) -> dict[str, int]:
    """For each mode the number of answers whose token ids differ from plain decoding where they must not; lossy ones
    may."""
    plain = next(run for run in runs if run.mode == PLAIN)
    return {
        run.mode: 0 if run.lossy else sum(a != b for a, b in zip(run.token_ids, plain.token_ids, strict=True))
        for run in runs
    }
