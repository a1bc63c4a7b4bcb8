"""`outrider doctor`: checks a pair on this machine and measures its speed."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outrider.pipelines import LLMPipeline, OutriderError
from outrider.pipelines.devices.genai_loading import TRIED, TRIED_TOKENS
from outrider.pipelines.model.tuning import Compilation
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.planner import LONGEST
from outrider.pipelines.speculation.speedup import CONTEXT, speedup_of

from ..load_options import LoadOptions

ACCEPTANCES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)
BAR_WIDTH = 32
MEGABYTE = 1e6


def examine(pair: Path, console: Console, again: bool = False, load: LoadOptions | None = None) -> bool:
    """Print the findings on a pair. False if nothing could be measured, or if exactness is asked for and not possible.

    again: repeat measurements that were stored earlier.

    Raises what `LLMPipeline` raises.
    """
    load = replace(load or LoadOptions(), fallback=None)  # which would be measured in place of the device
    if again:
        load.forget(pair)
    with console.status("Loading and measuring"):
        pipeline = load.load(pair)
        if pipeline.plans:
            if again:
                pipeline.speculation.measure(again=True)
            else:
                pipeline.speculation.measure_fully()
    if not pipeline.plans:
        _compare(pipeline, console, load)
        return not load.exact
    speculation = pipeline.speculation
    console.print(_findings(pipeline))
    if speculation.cost is None:
        console.print("[bold red]No pass could be measured on this machine[/]: answers are decoded without drafts. Try "
                      "again when it is less busy.")  # fmt: skip
        return False
    longest = min(LONGEST, speculation.compilation.rows.most - 1)
    console.print(_passes(speculation.cost), _gains(speculation.cost, longest))
    return pipeline.exact or not load.exact


def _table_of(pipeline: LLMPipeline) -> Table:
    return Table(title=pipeline.pair.name, show_header=False, title_justify="left", box=None, padding=(0, 1))


def _compare(loaded: LLMPipeline, console: Console, load: LoadOptions) -> None:
    """Print how fast OpenVINO GenAI answers TRIED in each way of drafting, and what "auto" came to."""
    table = _table_of(loaded)
    table.add_row("device", f"{loaded.device}, where OpenVINO GenAI decodes")
    table.add_row("exactness", "[yellow]the same seed can give another text[/]")
    table.add_row("chosen", f"speculation={loaded.modes[0]!r}")
    table.add_row("context", f"{loaded.max_context:,} tokens")
    models = filter(None, (loaded.pair.target, loaded.pair.draft))
    sizes = [(model / "openvino_model.bin").stat().st_size for model in models]
    table.add_row("memory", " and ".join(f"{size / MEGABYTE:,.0f} MB" for size in sizes) + " of weights, and the cache")
    speeds = Table(title=f"Speed of {len(TRIED)} answers of {TRIED_TOKENS} tokens", title_justify="left")
    for column in ("speculation", "tokens/s", "relative", "tokens a pass"):
        speeds.add_column(column, justify="left" if column == "speculation" else "right")
    pair, plain = loaded.pair, 0.0
    del loaded  # else two are in memory
    for speculation in ("off", "lookup", *(["draft"] if pair.draft else [])):
        with console.status(f"Loading with speculation={speculation!r} and measuring"):
            try:
                pipeline = replace(load, speculation=speculation).load(pair.path)
                pipeline.warm_up()
                options = {"max_new_tokens": TRIED_TOKENS, "ignore_eos": True, "do_sample": False}
                stats = [pipeline.generate(prompt, **options).stats[0] for prompt in TRIED]
            except OutriderError as error:
                speeds.add_row(speculation, f"[red]{escape(str(error))}[/]")
                continue
        rate = sum(each.new_tokens for each in stats) / sum(each.total_s for each in stats)
        plain = plain or rate
        passes = sum(each.passes for each in stats)
        speeds.add_row(speculation, f"{rate:.1f}", f"{rate / plain:.2f}", f"{TRIED_TOKENS * len(TRIED) / passes:.2f}")
        del pipeline
        gc.collect()
    console.print(table, speeds)


def _findings(pipeline: LLMPipeline) -> Table:
    table = _table_of(pipeline)
    speculation, memory = pipeline.speculation, pipeline.speculation.memory
    threads = f"{speculation.num_threads} threads, " if speculation.num_threads else ""
    table.add_row("device", f"{pipeline.device}, {threads}{speculation.precision}")
    for name, finding in _exactness(speculation.compilation):
        table.add_row(name, finding)
    if pipeline.pair.properties:
        chosen = ", ".join(f"{name}={value}" for name, value in pipeline.pair.properties.items())
        table.add_row("properties", f"{chosen}, of the pair")
    table.add_row("draft model", "none" if pipeline.pair.draft is None else "same vocabulary as the target, id for id")
    table.add_row("vocabulary", f"{len(pipeline.tokenizer.vocabulary):,} tokens")
    table.add_row("context", f"{pipeline.max_context:,} tokens")
    weights, cache = (f"{size / MEGABYTE:,.0f} MB" for size in (memory.weights, memory.cache))
    table.add_row("memory", f"{weights} of weights, {cache} of cache for {memory.cache_tokens:,} tokens")
    return table


def _exactness(compilation: Compilation) -> list[tuple[str, str]]:
    rows, price = compilation.rows, compilation.price
    if not compilation.exact:
        found = [
            ("exactness", "[yellow]the drafting mode can change the text[/], not its distribution"),
            ("rows", "any number in a pass: none is kept to for the sake of exactness"),
        ]
        return found if price is None else [*found, ("its cost", f"{price:.2f} plain passes a token; --exact pays it")]
    cost = "" if price is None else f"{price:.2f} plain passes a token, "
    parts = "" if compilation.longest is None else f", products above {compilation.longest} in parts"
    return [
        ("exactness", "[green]the same text in every mode[/], checked bit by bit"),
        ("its cost", f"{cost}passes of {rows.fewest} to {rows.most} rows{parts}"),
    ]


def _passes(cost: CostModel) -> Table:
    table = Table(title=f"Time of a pass by new tokens, with {CONTEXT} tokens of context", title_justify="left")
    table.add_column("tokens", justify="right")
    table.add_column("ms", justify="right")
    table.add_column("relative", justify="right")
    table.add_column("", max_width=BAR_WIDTH)
    one = cost.pass_ms([(1, CONTEXT)])
    longest = cost.pass_ms([(cost.rows[-1], CONTEXT)])
    for rows in sorted({1, *cost.rows}):
        took = cost.pass_ms([(rows, CONTEXT)])
        table.add_row(str(rows), f"{took:.2f}", f"{took / one:.2f}", Bar(longest, 0, took))
    if cost.draft_ms:
        table.add_section()
        table.add_row("draft model, one", f"{cost.draft_ms:.2f}", f"{cost.draft_ms / one:.2f}",
                      Bar(longest, 0, cost.draft_ms))  # fmt: skip
    return table


def _gains(cost: CostModel, longest: int) -> Table:
    table = Table(title="Expected speedup by acceptance rate", title_justify="left")
    table.add_column("accepted", justify="right")
    table.add_column("lookup", justify="right")
    if cost.draft_ms:
        table.add_column("draft model", justify="right")
    for acceptance in ACCEPTANCES:
        costs = (0.0, cost.draft_ms) if cost.draft_ms else (0.0,)
        best = [speedup_of(cost, acceptance, draft_ms, longest) for draft_ms in costs]
        table.add_row(f"{acceptance:.0%}", *(f"{each.ratio:.2f} times, {each.length} drafted" for each in best))
    return table
