"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.pipelines import EXACT

from .about import in_words
from .labels import named
from .report import Entry, Report
from .spread import Spread

HOW = "Modes in turns, their order shuffled with seed {seed}. Medians over the prompts, in brackets the quartiles."

SHOWN_ROWS = (1, 2, 4, 8, 16)

Column = tuple[str, Callable[[Entry], str]]


def show(report: Report, console: Console) -> None:
    """Print the conditions, a table for each family, and a warning about texts that differ."""
    for line in in_words(report.about):
        console.print(line, style="dim", highlight=False, markup=False)
    console.print(HOW.format(seed=report.seed), style="dim", highlight=False)
    for family in report.families:
        console.print(_table([entry for entry in report.entries if entry.family == family]))
    if costs := _costs(report):
        console.print(costs, style="dim", highlight=False)
    for note in report.notes:
        console.print(note, markup=False)
    if report.num_differing:
        for entry in report.entries:
            if entry.differing:
                console.print(
                    f"DIFFERENT TEXT: {entry.family}, mode {entry.mode}: {entry.differing} of {entry.num_prompts} "
                    "prompts were not answered with the tokens of plain decoding.",
                    style="bold red",
                    markup=False,
                )
        if not report.exact:
            console.print("Exactness is off here, so drafting may change the text: --exact asks for it.")
    elif report.acceptance != EXACT:
        console.print(f"Lossy: with acceptance {report.acceptance!r}, drafts may change the text.", style="yellow")
    else:
        console.print("Every mode gave the tokens of plain decoding.", style="green")


def _costs(report: Report) -> str:
    """What passes and drafted tokens take; empty where that is not known."""
    shown = [(str(rows), f"{ms:.1f}") for rows, ms in report.pass_ms if rows in SHOWN_ROWS]
    if not shown:
        return ""
    rows, times = (", ".join(each) for each in zip(*shown, strict=True))
    told = [f"Passes of {rows} rows take {times} ms"]
    for name, ms in report.draft_ms.items():
        begin_ms = report.begin_ms.get(name)
        begin = f", and {begin_ms:.1f} ms to begin" if begin_ms else ""
        told.append(f"a token takes {named(name)} {ms:.1f} ms{begin}")
    return f"\n{'; '.join(told)}."


def figure(spread: Spread | None, digits: int = 1, scale: float = 1.0) -> str:
    """A median."""
    return "-" if spread is None else f"{scale * spread.median:.{digits}f}"


def figure_with_quartiles(spread: Spread | None, digits: int) -> str:
    """A median with the quartiles in parentheses."""
    if spread is None or spread.count == 1:
        return figure(spread, digits)
    return f"{figure(spread, digits)} ({spread.low:.{digits}f}-{spread.high:.{digits}f})"


COLUMNS: tuple[Column, ...] = (
    ("tokens\n/s", lambda e: figure(e.tokens_per_s)),
    ("x plain", lambda e: figure_with_quartiles(e.speedup, 2)),
    ("TTFT\nms", lambda e: figure(e.ttft_ms, 0)),
    ("TPOT\nms", lambda e: figure(e.tpot_ms)),
    ("tokens\n/pass", lambda e: figure(e.tokens_per_pass, 2)),
    ("kept\n%", lambda e: figure(e.acceptance, 0, 100)),
    ("outside\n%", lambda e: figure(e.outside, 1, 100)),
    ("of\nbest %", lambda e: figure(e.best_share, 0, 100)),
    ("text", lambda e: "lossy" if e.lossy else "DIFFERS" if e.differing else "same"),
)


def caption(entries: Sequence[Entry]) -> str:
    """The family of these, and its number of prompts."""
    count = entries[0].num_prompts
    return f"{entries[0].family}, {count} prompt{'s' * (count != 1)}"


def _table(entries: list[Entry]) -> Table:
    title = Text(f"\n{caption(entries)}", "table.title")
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("mode", no_wrap=True)
    for name, _ in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        table.add_row(entry.mode, *(cell(entry) for _, cell in COLUMNS), style="red" if entry.differing else None)
    return table
