"""The command `outrider bench`."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from outrider.export.command import plain_app
from outrider.models.pulled import find_pair
from outrider.pipelines import EXACT, InvalidOption, LLMPipeline, OutriderError
from outrider.pipelines.privacy import keep_private

from ..cli.options import Acceptance, Device, DraftDevice, Engine, Exact, Property
from ..load_options import LoadOptions, properties_of
from ..progress import rarely
from ..writable import require_writable, write
from .about import describe
from .best import best_shares
from .heads import MODES as HEAD_MODES
from .heads import check_heads, together
from .measure import PLAIN, Run, check_tasks, measure
from .prompts import FAMILIES, shipped_tasks
from .report import Report, cost_curve, entries, samples
from .table import show
from .task import Task, first_of_each, read_tasks

app = plain_app()


class MissingPlots(OutriderError):
    """matplotlib is not installed."""


@app.command(epilog="Families: " + "; ".join(f"{name}: {about}" for name, about in FAMILIES.items()) + ".")
def bench_command(
    pair: Annotated[
        Path | None,
        typer.Argument(
            parser=find_pair,
            metavar="[PAIR]",
            help="A pulled pair's name, or a pair's folder.",
            show_default="the pair that comes with Outrider",
        ),
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSON Lines file of prompts to use.")] = None,
    prompts_per_family: Annotated[int, typer.Option(help="Most prompts per family.")] = 20,
    family: Annotated[list[str] | None, typer.Option(help="Run only this family; can be repeated.")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="Run only this and plain decoding; can be repeated.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens per answer.", min=2)] = 128,
    seed: Annotated[int | None, typer.Option(help="Seed for the order of the modes.", show_default="random")] = None,
    acceptance: Acceptance = "exact",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report with plots to this HTML file.")] = None,
    exact: Exact = None,
    device: Device = "CPU",
    draft_device: DraftDevice = "CPU",
    engine: Engine = None,
    openvino_property: Property = None,
    head: Annotated[
        list[Path] | None,
        typer.Option(help="An exported head to draft with in place of the pair's own; can be repeated to compare."),
    ] = None,
) -> None:
    """Benchmark every mode of a pair against plain decoding, and check that all generate the same tokens.

    The exit code is 1 if they do not, although exactness is guaranteed on this machine. With a lossy --acceptance, the
    modes that draft are labelled lossy, and their texts are not compared.

    Several heads are loaded one after the other, each with its own run of plain decoding, so that the target is in
    memory once. Modes that use no head are measured with the first.

    An interrupted benchmark reports the prompts that all modes have answered, with exit code 130.
    """
    keep_private()
    _check_page(html)
    known = shipped_tasks() if prompts is None else read_tasks(prompts)
    tasks = first_of_each(_chosen(known, family), prompts_per_family)
    messages = Console(stderr=True)
    given = properties_of(openvino_property or ())
    load = LoadOptions(device, draft_device, engine, exact=exact, properties=given)
    if device.startswith("GPU") and engine != "outrider":
        raise InvalidOption(
            "The benchmark measures Outrider's engine: give --engine outrider. To compare OpenVINO GenAI's ways of "
            f"drafting, run outrider doctor --device {device}."
        )
    seed = random.randrange(2**31) if seed is None else seed
    pair, heads = pair or _embedded_pair(), head or ()
    check_heads(pair, heads, mode)
    reports: list[Report] = []
    try:
        for number, each in enumerate(heads or [None]):
            pipeline = replace(load, head=each).load(pair)
            modes = _modes(pipeline.modes, mode)
            if number:
                modes = [name for name in modes if name in (PLAIN, *HEAD_MODES)]
            check_tasks(tasks, pipeline, modes, max_new_tokens, acceptance)
            with messages.status("Warming up and measuring what passes cost"):
                pipeline.warm_up()
            reports.append(run(pipeline, tasks, modes, max_new_tokens, seed, messages, acceptance))
            if reports[-1].interrupted:
                break
            del pipeline
            gc.collect()  # or the next target is in memory beside this one
    except KeyboardInterrupt:
        if not reports:
            typer.echo("Interrupted before all modes had answered a prompt, so there is nothing to report.", err=True)
            raise
        reports[-1] = replace(reports[-1], interrupted=True)
    report = together(reports) if len(heads) > 1 else reports[0]
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        show(report, Console())
    if html is not None:
        from .html_report import page

        write(html, page(report), "--html")
        messages.print(f"Wrote {html}.", markup=False, soft_wrap=True)
    differs = report.exact and report.num_differing > 0
    if differs:
        typer.echo(f"outrider: {report.num_differing} answers differ from plain decoding.", err=True)
    if report.interrupted:
        typer.echo("Interrupted: this is what was measured until then.", err=True)
    if differs or report.interrupted:
        raise typer.Exit(130 if report.interrupted else 1)


def run(
    pipeline: LLMPipeline,
    tasks: Sequence[Task],
    modes: Sequence[str],
    max_new_tokens: int,
    seed: int,
    messages: Console,
    acceptance: str = EXACT,
) -> Report:
    """Measure, and compute the best possible schedules afterwards, so that nothing disturbs the measurement.

    An interrupt ends the measurement, but raises KeyboardInterrupt only if there is nothing to report yet.
    """
    results: list[tuple[Run, ...]] = []
    notes: tuple[str, ...] = ()
    shares: Mapping[tuple[int, str], float] = {}
    speculation, interrupted = pipeline.speculation, False
    with Progress(console=messages, transient=True, disable=not messages.is_terminal) as progress:
        bar = progress.add_task("", total=len(tasks) * len(modes))
        say = rarely(lambda text: None if messages.is_terminal else messages.print(text, markup=False))

        def announce(text: str) -> None:
            say(f"{text} (prompt {len(results) + 1} of {len(tasks)})")
            progress.update(bar, description=escape(text))
            progress.advance(bar)

        forget = speculation.forget_prompts
        try:
            for runs in measure(pipeline, forget, tasks, modes, max_new_tokens, seed, announce, acceptance):
                results.append(runs)
            progress.update(bar, description="finding the best possible schedules")
            notes, shares = _best(pipeline, results)
        except KeyboardInterrupt:
            if not results:
                raise
            interrupted = True
            notes = (f"Interrupted after {len(results)} of {len(tasks)} prompts or batches.",)
    drafts = {} if speculation.cost is None else speculation.cost.drafts
    return Report(
        about=describe(pipeline.pair),
        seed=seed,
        exact=pipeline.exact,
        acceptance=acceptance,
        entries=tuple(entries(results, shares)),
        samples=tuple(samples(results, modes[-1])),
        pass_ms=cost_curve(speculation.cost),
        draft_ms={name: draft.token_ms for name, draft in drafts.items()},
        begin_ms={name: draft.begin_ms for name, draft in drafts.items() if draft.begin_ms},
        notes=notes,
        interrupted=interrupted,
    )


def main(arguments: list[str]) -> None:
    """Run the command with the arguments after `outrider bench`."""
    app(arguments, prog_name="outrider bench")


def _best(
    pipeline: LLMPipeline, results: Sequence[Sequence[Run]]
) -> tuple[tuple[str, ...], Mapping[tuple[int, str], float]]:
    if pipeline.speculation.cost is None:
        return ("What passes cost could not be measured here, so the best possible schedule is not known.",), {}
    return (), best_shares(pipeline, pipeline.speculation.cost, results)


def _chosen(tasks: Sequence[Task], families: Sequence[str] | None) -> list[Task]:
    known = dict.fromkeys(task.family for task in tasks)
    for name in families or ():
        if name not in known:
            raise InvalidOption(f"Family {name!r} does not exist: choose {', '.join(known)}.")
    return [task for task in tasks if not families or task.family in families]


def _modes(known: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    for name in wanted or ():
        if name not in known:
            raise InvalidOption(f"Mode {name!r} is not one that this pair can do: choose {', '.join(known)}.")
    return [name for name in known if not wanted or name in wanted or name == PLAIN]


def _check_page(path: Path | None) -> None:
    """Check before hours of measuring that the report can be written."""
    if path is None:
        return
    if find_spec("matplotlib") is None:
        raise MissingPlots("--html needs matplotlib: pip install 'outrider[bench]'.")
    require_writable(path, "--html")


def _embedded_pair() -> Path:
    from outrider.models import embedded_pair

    return embedded_pair()
