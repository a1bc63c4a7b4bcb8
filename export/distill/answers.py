"""The target's answers in a folder, written stretch by stretch, so that an interruption loses no more than one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedModel

from .progress import progress_bar
from .samples import Sample, chunks, write_samples
from .settings import Distillation

STRETCH = 4  # batches of prompts that are sorted, answered and saved together


def write_answers(
    target: PreTrainedModel,
    stretches: Iterable[Sequence[Sequence[int]]],
    how: Distillation,
    path: Path,
    count: int,
) -> None:
    """Answer stretches of prompts and write one answer a line to `path`, which exists once all are answered.

    stretches: token ids of prompts, the same in every call; those that are done are read and not answered again.
    count: how many prompts there are, for the progress bar.
    """
    if path.exists():
        return
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    parts = []
    with progress_bar("target writes", count, "answer") as bar:
        for number, prompts in enumerate(stretches):
            parts.append(folder / f"{number}.jsonl")
            if not parts[-1].exists():
                samples = write_samples(target, prompts, replace(how, seed=how.seed + number))
                write_whole(parts[-1], "".join(json.dumps([sample.ids, sample.start]) + "\n" for sample in samples))
            bar.update(len(prompts))
    write_whole(path, "".join(part.read_text(encoding="utf-8") for part in parts))


def read_answers(path: Path) -> list[Sample]:
    """The samples that `write_answers` wrote."""
    return [Sample(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def stretches_of(prompts: Sequence[Sequence[int]], batch_size: int) -> list[list[Sequence[int]]]:
    """The prompts in stretches, each sorted by length, so that little is padded."""
    return [sorted(stretch, key=len) for stretch in chunks(prompts, STRETCH * batch_size)]


def write_whole(path: Path, text: str) -> None:
    """Write a file that is complete whenever it is there."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)
