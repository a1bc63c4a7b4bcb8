"""`outrider doctor`: checks a pair on this machine and measures its speed."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outrider.pipelines import AUTO, LLMPipeline, OutriderError, Pair
from outrider.pipelines.devices.devices import CPU, NPU
from outrider.pipelines.devices.genai_loading import TRIED, TRIED_TOKENS
from outrider.pipelines.devices.npu_model import DECODING_ROWS, NUM_DECODING_ROWS
from outrider.pipelines.model.tuning import SEARCH_S, Compilation
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft import LONGEST
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.drafters.draft_model import DraftModel
from outrider.pipelines.speculation.expected_acceptance import HOPED
from outrider.pipelines.speculation.speedup import CONTEXT, speedup_of

from ..bench.labels import LABELS
from ..load_options import LoadOptions
from .scrubbing import scrubbed, without_path

ACCEPTANCES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)
BAR_WIDTH = 32
MEGABYTE = 1e6


def examine(pair: Path, console: Console, again: bool = False, load: LoadOptions | None = None) -> bool:
    """Print the findings on a pair. False if nothing could be measured, or if exactness is asked for and not possible.

    again: repeat measurements that were stored earlier.

    Raises what `LLMPipeline` raises.
    """
    load = load or LoadOptions()
    if load.fallback is not None:
        console.print(f"--fallback {load.fallback} is left out, since it is {load.device} that is examined.")
        load = replace(load, fallback=None)
    if again:
        load.forget(pair)
    if load.uses_genai:
        console.print(_genai_findings(pair, console, load))
        console.print(_genai_speeds(pair, console, load))
        return not load.exact
    with console.status("Loading and measuring"):
        pipeline = load.load(pair)
        if again:
            pipeline.speculation.measure(again=True)
        else:
            pipeline.speculation.measure_fully()
    speculation = pipeline.speculation
    console.print(_findings(pipeline, load))
    most = speculation.compilation.rows.most
    if most == 1:
        console.print("[bold yellow]Every pass has a single row[/], which leaves none for drafts: answers are decoded "
                      f"without them. Load the pair with {DECODING_ROWS}={NUM_DECODING_ROWS} to draft.")  # fmt: skip
        return pipeline.exact or not load.exact
    if speculation.cost is None:
        console.print("[bold red]No pass could be measured on this machine[/]: answers are decoded without drafts. Try "
                      "again when it is less busy.")  # fmt: skip
        return False
    longest = min(LONGEST, most - 1)
    console.print(_passes(speculation.cost), _gains(speculation.cost, longest))
    is_sound = pipeline.exact or not load.exact
    places = dict.fromkeys((CPU, load.device, load.draft_device))
    if pipeline.pair.draft is not None and len(places) > 1:
        costs = {load.draft_device: speculation.cost}
        del pipeline, speculation
        console.print(_draft_devices(pair, console, load, tuple(places), costs, longest))
    return is_sound


def _table_of(pipeline: LLMPipeline, load: LoadOptions, decoder: str) -> Table:
    """A table to put findings into, with the devices."""
    table = Table(title=escape(pipeline.pair.name), show_header=False, title_justify="left", box=None, padding=(0, 1))
    table.add_row("device", f"{_place(pipeline.device, load)}, {decoder}")
    kinds = {device.split(".")[0]: None for device in (pipeline.device, pipeline.draft_device)}
    for kind in kinds:
        if kind != CPU:
            table.add_row("tried", f"[yellow]before release never on a real {kind}[/], only with the CPU in its place")
    return table


def _place(device: str, load: LoadOptions) -> str:
    return device if device != NPU or load.stand_in is None else f"{device} (its code computes on {load.stand_in})"


def _genai_findings(pair: Path, console: Console, load: LoadOptions) -> Table:
    """What OpenVINO GenAI came to with "auto", or with what is asked for."""
    speculation = load.speculation or AUTO
    draft_device = load.draft_device if speculation == "draft" else CPU  # else it is refused
    with console.status("Loading and trying"):
        pipeline = replace(load, draft_device=draft_device).load(pair)
    table = _table_of(pipeline, load, "where OpenVINO GenAI decodes")
    table.add_row("exactness", "[yellow]the same seed can give another text[/]")
    table.add_row("chosen", f"speculation={pipeline.modes[0]!r}")
    table.add_row("context", f"{pipeline.max_context:,} tokens")
    models = filter(None, (pipeline.pair.target, pipeline.pair.draft))
    sizes = [(model / "openvino_model.bin").stat().st_size for model in models]
    table.add_row("memory", " and ".join(f"{size / MEGABYTE:,.0f} MB" for size in sizes) + " of weights, and the cache")
    return table


def _genai_speeds(pair: Path, console: Console, load: LoadOptions) -> Table:
    """How fast OpenVINO GenAI answers TRIED in each way of drafting. One pipeline at a time is in memory."""
    table = Table(title=f"Speed of {len(TRIED)} answers of {TRIED_TOKENS} tokens", title_justify="left")
    for column in ("speculation", "tokens/s", "relative", "tokens a pass"):
        table.add_column(column, justify="left" if column == "speculation" else "right")
    ways = [("off", CPU), ("lookup", CPU)]
    if Pair.open(pair).draft is not None:
        ways += [("draft", device) for device in dict.fromkeys((CPU, load.device, load.draft_device))]
    plain = None
    for speculation, draft_device in ways:
        gc.collect()  # the pipeline before
        name = f"draft on {draft_device}" if speculation == "draft" else speculation
        with console.status(f"Loading with speculation={name} and measuring"):
            try:
                speed = _genai_speed(replace(load, speculation=speculation, draft_device=draft_device), pair)
            except OutriderError as error:
                table.add_row(name, f"[red]{escape(scrubbed(str(error), pair))}[/]")
                continue
        if speculation == "off":
            plain = speed.rate
        relative = "" if plain is None else f"{speed.rate / plain:.2f}"
        table.add_row(name, f"{speed.rate:.1f}", relative, f"{speed.tokens_a_pass:.2f}")
    return table


@dataclass(frozen=True, slots=True)
class _Speed:
    rate: float  # tokens per second
    tokens_a_pass: float


def _genai_speed(load: LoadOptions, pair: Path) -> _Speed:
    pipeline = load.load(pair)
    pipeline.warm_up()
    options = {"max_new_tokens": TRIED_TOKENS, "ignore_eos": True, "do_sample": False}
    stats = [pipeline.generate(prompt, **options).stats[0] for prompt in TRIED]
    num_tokens = sum(each.new_tokens for each in stats)
    return _Speed(num_tokens / sum(each.total_s for each in stats), num_tokens / sum(each.passes for each in stats))


def _findings(pipeline: LLMPipeline, load: LoadOptions) -> Table:
    speculation, memory = pipeline.speculation, pipeline.speculation.memory
    threads = f"{speculation.num_threads} threads, " if speculation.num_threads else ""
    if speculation.compilation.num_threads is not None:
        threads += "which are fastest here, "
    table = _table_of(pipeline, load, f"{threads}{speculation.precision}")
    for name, finding in _exactness(speculation.compilation):
        table.add_row(name, finding)
    if pipeline.pair.properties:
        chosen = ", ".join(f"{name}={without_path(value)}" for name, value in pipeline.pair.properties.items())
        table.add_row("properties", f"{chosen}, of the pair")
    place = "" if pipeline.draft_device == CPU else f", on {_place(pipeline.draft_device, load)}"
    alike = f"same vocabulary as the target, id for id{place}"
    table.add_row("draft model", "none" if pipeline.pair.draft is None else alike)
    table.add_row("vocabulary", f"{len(pipeline.tokenizer.vocabulary):,} tokens")
    table.add_row("context", f"{pipeline.max_context:,} tokens")
    weights, cache = (f"{size / MEGABYTE:,.0f} MB" for size in (memory.weights, memory.cache))
    table.add_row("memory", f"{weights} of weights, {cache} of cache for {memory.cache_tokens:,} tokens")
    return table


def _exactness(compilation: Compilation) -> list[tuple[str, str]]:
    rows, price = compilation.rows, compilation.price
    if not compilation.exact:
        sizes = "any number in a pass" if rows.fewest == 1 else f"{rows.fewest} or more in a pass, which is faster"
        found = [
            ("exactness", "[yellow]the drafting mode can change the text[/], not its distribution"),
            ("rows", sizes),
        ]
        if compilation.undecided:
            return [*found, ("its cost", f"not found out within {SEARCH_S:.0f} seconds; use --exact to have it anyway")]
        if price is None:
            return found
        return [*found, ("its cost", f"{price:.2f} times the time of plain decoding; use --exact to have it")]
    sizes = str(rows.most) if rows.fewest == rows.most else f"{rows.fewest} to {rows.most}"
    costs = [f"passes of {sizes} rows"]
    if rows.whole_prompt is not None:
        costs = ["nothing, as every pass takes as long"]
    elif price is not None:
        costs.insert(0, f"{price:.2f} times the time of plain decoding")
    if compilation.longest is not None:
        costs.append(f"products above {compilation.longest} in parts")
    return [
        ("exactness", "[green]the same text in every mode[/], checked bit by bit"),
        ("its cost", ", ".join(costs)),
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
    if cost.drafts:
        table.add_section()
    for name, draft in cost.drafts.items():
        took = draft.token_ms
        table.add_row(f"{LABELS[name]}, one", f"{took:.2f}", f"{took / one:.2f}", Bar(longest, 0, took))
        if took := draft.begin_ms:
            table.add_row(f"{LABELS[name]}, to begin", f"{took:.2f}", f"{took / one:.2f}", Bar(longest, 0, took))
    return table


def _draft_devices(
    pair: Path, console: Console, load: LoadOptions, places: Sequence[str], costs: dict[str, CostModel], longest: int
) -> Table:
    """What the draft model takes on each device, with the target where it is. One pipeline at a time is in memory.

    costs: by the draft model's device, as far as they are known.
    """
    table = Table(title=f"Draft model by device, {HOPED:.0%} accepted", title_justify="left")
    for column in ("device", "ms a token", "expected speedup"):
        table.add_column(column, justify="left" if column == "device" else "right")
    failed: dict[str, str] = {}
    for place in places:
        if place in costs:
            continue
        gc.collect()  # the pipeline before
        with console.status(f"Loading with the draft model on {place} and measuring"):
            try:
                pipeline = load.drafting_on(place).load(pair)
                pipeline.speculation.measure_fully()
            except OutriderError as error:
                failed[place] = scrubbed(str(error), pair)
                continue
        if pipeline.speculation.cost is not None:
            costs[place] = pipeline.speculation.cost
        del pipeline
    drafts = {place: cost.drafts[DraftModel.name] for place, cost in costs.items() if DraftModel.name in cost.drafts}
    for place in costs.keys() - drafts.keys():  # what else drafts was measured without it, and a warning tells why
        failed[place] = f"{place} failed when it was measured: update the device's driver, or use another device"
    gains = {place: speedup_of(costs[place], HOPED, draft, longest) for place, draft in drafts.items()}
    best = max(gains, key=lambda place: (gains[place].ratio, -drafts[place].token_ms), default=None)
    for place in places:
        if place in gains:
            name = f"{place}, the fastest" if place == best and len(gains) > 1 else place
            table.add_row(name, f"{drafts[place].token_ms:.2f}", f"{gains[place].ratio:.2f} times")
        else:
            table.add_row(place, "", f"[red]{escape(failed.get(place, 'could not be measured'))}[/]")
    return table


def _gains(cost: CostModel, longest: int) -> Table:
    table = Table(title="Expected speedup by acceptance rate", title_justify="left")
    table.add_column("accepted", justify="right")
    table.add_column("lookup", justify="right")
    for name in cost.drafts:
        table.add_column(LABELS[name], justify="right")
    for acceptance in ACCEPTANCES:
        best = [speedup_of(cost, acceptance, draft, longest) for draft in (DraftCost(0.0), *cost.drafts.values())]
        table.add_row(f"{acceptance:.0%}", *(f"{each.ratio:.2f} times, {each.length} drafted" for each in best))
    return table
