"""Run all peers on the same prompts, in turns.

    python -m tests.benchmark.peers FOLDER      (make bench-peers OUT=FOLDER)

FOLDER is what `python -m tests.benchmark.wide_pair` made. Needs the extras [bench] and [export], and gguf and
llama-cpp-python for llama.cpp; a peer that cannot be loaded is named with the reason and left out.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from outrider.app.bench.about import describe, in_words
from outrider.app.bench.measure import in_turns
from outrider.app.bench.prompts import shipped_tasks
from outrider.app.bench.table import figure, figure_with_quartiles
from outrider.app.bench.task import Task, first_of_each, read_tasks
from outrider.pipelines import Pair, Tokenizer
from outrider.pipelines.privacy import keep_private
from outrider.pipelines.text.prompt import encode_prompt

from .base import CannotRun, Question, Reply, Setup
from .long import FAMILY as LONG
from .long import long_tasks
from .results import BASE, OURS, Line, Who, best_right, lines
from .worker import PEERS, Worker

HOW = (
    "{threads} threads each, in turns, order shuffled with seed {seed}. Medians over the prompts, in brackets the "
    "quartiles: tokens per second after the first (of a batch: all by all of the time), times those of {base}, and how "
    "many times as fast {ours} is. Text is right where a mode's tokens are those of its own plain decoding; sampled "
    "text cannot be compared so, and is called biased where it is known not to follow the model's distribution."
)
WARM_UP = "Repeat this function:\ndef double(number):\n    return 2 * number"
REST_S = 0.1  # for the threads of the peer before to go to sleep


def main(
    folder: Annotated[Path, typer.Argument(help="Holds the checkpoints target/ and draft/, and their pair/.")],
    prompts: Annotated[Path | None, typer.Option(help="Your own prompts, as JSON lines, in place of ours.")] = None,
    prompts_per_family: Annotated[int, typer.Option(help="How many prompts of each family, at most.")] = 20,
    family: Annotated[
        list[str] | None, typer.Option(help=f"Only this family; can be repeated. {LONG} if asked for.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help="Only this peer; can be repeated.")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="Only this mode, in every peer; can be repeated.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of an answer, at most.", min=2)] = 128,
    threads: Annotated[int, typer.Option(help="Threads of every peer.")] = os.cpu_count() or 1,
    max_context: Annotated[int, typer.Option(help="Tokens that prompt and answer can have together.")] = 8192,
    precision: Annotated[
        str | None, typer.Option(help="What OpenVINO computes in, for every peer, such as f32; else each as it likes.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Shuffles the order.", show_default="drawn")] = None,
    out: Annotated[Path | None, typer.Option(help="Write every answer's figures to this JSON file.")] = None,
) -> None:
    """Compare Outrider with other runtimes on the same prompts and weights."""
    if unknown := [name for name in peer or () if name not in PEERS]:
        raise typer.BadParameter(f"no such peer: {', '.join(unknown)}; choose from {', '.join(PEERS)}.")
    keep_private()
    console = Console()
    seed = random.randrange(2**31) if seed is None else seed
    known = read_tasks(prompts) if prompts else [*shipped_tasks(), *long_tasks()]
    wanted = family or [name for name in dict.fromkeys(task.family for task in known) if name != LONG]
    tasks = first_of_each([task for task in known if task.family in wanted], prompts_per_family)
    pair = Pair.open(folder / "pair")
    tokenizer = Tokenizer(pair.target)
    questions = [_question(task, tokenizer, max_new_tokens) for task in tasks]
    scratch = folder / "peers"
    scratch.mkdir(exist_ok=True)
    with ExitStack() as stack:
        workers = []
        for name in peer or PEERS:
            try:
                worker = Worker(name, Setup(pair.path, folder, scratch, threads, max_context, precision))
            except CannotRun as error:
                console.print(f"{name} cannot run: {error}", style="red", markup=False)
                continue
            stack.callback(worker.close)
            workers.append(worker)
        about = describe(pair, ())
        about["versions"] |= {name: number for worker in workers for name, number in worker.versions.items()}
        for line in in_words(about):
            console.print(line, highlight=False)
        if precision is not None:
            console.print(f"OpenVINO computes in {precision}, for every peer.", highlight=False)
        console.print(HOW.format(threads=threads, seed=seed, base=" ".join(BASE), ours=" ".join(OURS)), highlight=False)
        choices = {f"{w.name}, {m}": (w, m) for w in workers for m in w.modes if not mode or m in mode}
        _warm_up(choices.values(), _question(Task("", (WARM_UP,)), tokenizer, 8))
        answers = []
        refusals: dict[str, set[str]] = {}
        for number, question in enumerate(questions):
            console.print(f"{number + 1} of {len(questions)}: {question.task.family}", style="dim")
            answers.append((question, _ask(choices, question, seed, number, refusals)))
    biased = {(worker.name, mode) for worker in workers for mode in worker.biased}
    found = lines(answers, {worker.name: worker.modes[0] for worker in workers}, biased)
    _show(found, console)
    for refusal, families in refusals.items():
        console.print(f"{refusal} ({', '.join(sorted(families))})", markup=False)
    if out is not None:
        written = {"about": about, "seed": seed, "precision": precision, "answers": [*_raw(answers)]}
        out.write_text(json.dumps(written), encoding="utf-8")


def _question(task: Task, tokenizer: Tokenizer, max_new_tokens: int) -> Question:
    ids = tuple(tuple(encode_prompt(prompt, None, tokenizer, True)) for prompt in task.prompts)
    assert tokenizer.eos_token_id is not None
    return Question(task, ids, {"max_new_tokens": max_new_tokens, **task.options}, tokenizer.eos_token_id)


def _warm_up(choices: Iterable[tuple[Worker, str]], question: Question) -> None:
    """Each mode answers once before anything is timed: the first pass packs weights."""
    for worker, mode in choices:
        with suppress(CannotRun):  # it will be said when it counts
            worker.answer(mode, question)


def _ask(
    choices: Mapping[str, tuple[Worker, str]], question: Question, seed: int, number: int, refusals: dict[str, set[str]]
) -> dict[Who, Reply]:
    replies = {}
    for name in in_turns(list(choices), seed, number):
        worker, mode = choices[name]
        time.sleep(REST_S)
        try:
            replies[worker.name, mode] = worker.answer(mode, question)
        except CannotRun as error:
            refusals.setdefault(f"{name}: {error}", set()).add(question.task.family)
    return {(worker.name, mode): replies[worker.name, mode] for worker, mode in choices.values()
            if (worker.name, mode) in replies}  # fmt: skip


def _show(found: Sequence[Line], console: Console) -> None:
    for family in dict.fromkeys(line.family for line in found):
        table = Table(title=f"\n{family}", title_justify="left", box=None, padding=(0, 1, 0, 0))
        table.add_column("", no_wrap=True)
        for title in ("tokens\n/s", "x GenAI\nplain", "auto\nx it", "text\nright"):
            table.add_column(title, justify="right", no_wrap=True)
        for line in (line for line in found if line.family == family):
            uncompared = "biased" if line.is_biased else "not compared"
            right = f"{line.right} of {line.compared}" if line.compared else uncompared
            ratios = (figure_with_quartiles(line.to_base, 2), figure_with_quartiles(line.ours_to_it, 2))
            table.add_row(" ".join(line.who), figure(line.tokens_per_s), *ratios, right)
        console.print(table)
        best = best_right(found, family, BASE[0])
        if best is not None and best.ours_to_it is not None:
            console.print(
                f"Best right mode of {BASE[0]}: {best.who[1]}; {' '.join(OURS)} is "
                f"{figure_with_quartiles(best.ours_to_it, 2)} times as fast."
            )


def _raw(answers: Sequence[tuple[Question, Mapping[Who, Reply]]]) -> Iterable[dict[str, object]]:
    for number, (question, replies) in enumerate(answers):
        for (peer, mode), reply in replies.items():
            yield {"task": number, "family": question.task.family, "peer": peer, "mode": mode,
                   "tokens_per_s": reply.tokens_per_s, **asdict(reply)}  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
