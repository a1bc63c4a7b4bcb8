"""Plots as SVG text: speed per family, acceptance by depth, the cost of a pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import Any, TypeVar

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .heads import parted
from .labels import label_of, named
from .report import Entry, Report

COLOURS = {
    "off": "#94a3b8", "lookup": "#0284c7", "suffix": "#0d9488", "recycling": "#b45309", "draft": "#d97706",
    "head": "#65a30d", "skip": "#0e7490", "exit": "#4338ca",
    "chained": "#7c3aed", "auto": "#0f172a", "prompt_lookup": "#0284c7", "draft_model": "#d97706",
    "reference": "#7c3aed", "earlier_turn": "#be185d", "layer_skipping": "#0e7490", "early_exit": "#4338ca",
    "grammar": "#64748b", "target": "#94a3b8",
}  # fmt: skip
STYLE = {
    "svg.fonttype": "none",  # keeps text as text
    "svg.hashsalt": "outrider",  # makes the file reproducible
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e2e8f0",
}
HATCHES, LINES = (None, "///", "...", "xxx"), ("solid", "dashed", "dotted", "dashdot")  # of the first head, the next
LEGEND_COLUMNS = 8
FEWEST_JUDGED = 5  # fewer tokens give no meaningful rate

Style = TypeVar("Style")


def speed(report: Report) -> str:
    """Tokens per second of each family and mode, with the quartiles over the prompts."""
    modes, families = report.modes, report.families
    width = 0.8 / len(modes)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, mode in enumerate(modes):
            shown = [(families.index(e.family), e.tokens_per_s) for e in report.entries if e.mode == mode]
            there = [(at + (number - (len(modes) - 1) / 2) * width, s) for at, s in shown if s is not None]
            axes.bar(
                [at for at, _ in there],
                [s.median for _, s in there],
                width * 0.92,
                yerr=[[s.median - s.low for _, s in there], [s.high - s.median for _, s in there]],
                error_kw={"elinewidth": 0.8, "ecolor": "#475569"},
                color=_colour(mode),
                hatch=_of_head(mode, HATCHES),
                edgecolor="white",
                linewidth=0,
                label=mode,
            )
        axes.set_xticks(range(len(families)), families)
        axes.set_ylabel("tokens per second")
        axes.grid(axis="x", visible=False)
        figure.legend(loc="outside upper center", ncols=min(len(modes), LEGEND_COLUMNS), frameon=False)

    return _svg(draw, (9, 3.8))


def depth(report: Report) -> str:
    """For each drafter, the acceptance rate at each position of a draft, given that those before were accepted."""
    rates = _rates(report.entries)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
        for axes, (drafter, families) in zip(panels, rates.items(), strict=True):
            for family, points in families.items():
                colour = f"C{report.families.index(family)}"
                axes.plot(*zip(*points, strict=True), marker=".", linewidth=1.2, label=family, color=colour)
            axes.set_title(label_of(drafter))
            axes.set_xlabel("place in the draft")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            axes.set_ylim(0, 1.05)
        panels[0].set_ylabel("share kept")
        lines = {str(line.get_label()): line for axes in panels for line in axes.get_lines()}
        figure.legend(lines.values(), lines, loc="outside upper center", ncols=7, frameon=False)

    return _svg(draw, (9, 3.4)) if rates else ""


def cost(report: Report) -> str:
    """The time of a pass by its number of rows."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        rows, times = zip(*report.pass_ms, strict=True)
        axes.plot(rows, times, marker="o", markersize=3.5, color=COLOURS["auto"], label="a pass of the target")
        for name, token_ms in report.draft_ms.items():
            label = f"a token of {named(name)}"
            axes.axhline(token_ms, color=_colour(name), linestyle=_of_head(name, LINES), linewidth=1.2, label=label)
        axes.set_xlabel("rows of the pass")
        axes.set_ylabel("milliseconds")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)

    return _svg(draw, (9, 3.0)) if report.pass_ms else ""


def _rates(entries: Iterable[Entry]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """(place, share kept) by drafter and family, where enough was judged."""
    rates: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for drafter, families in _by_drafter(entries).items():
        for family, seen in families.items():
            if points := [(i + 1, kept / judged) for i, (judged, kept) in enumerate(seen) if judged >= FEWEST_JUDGED]:
                rates.setdefault(drafter, {})[family] = points
    return rates


def _by_drafter(entries: Iterable[Entry]) -> dict[str, dict[str, list[tuple[int, int]]]]:
    """(judged, kept) by drafter, family and depth, all modes together."""
    counts: defaultdict[str, defaultdict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        for drafter, seen in entry.by_depth.items():
            total = counts[drafter][entry.family]
            total += [(0, 0)] * (len(seen) - len(total))
            for i, (judged, kept) in enumerate(seen):
                total[i] = (total[i][0] + judged, total[i][1] + kept)
    return {drafter: dict(families) for drafter, families in counts.items()}


def _colour(label: str) -> str:
    """The colour of a mode or a drafter."""
    return COLOURS.get(parted(label)[0], "#475569")


def _of_head(label: str, styles: Sequence[Style]) -> Style:
    """The style of a mode or a drafter by the number of its head."""
    return styles[max(0, parted(label)[1] - 1) % len(styles)]


def _svg(draw: Callable[[Figure], Any], size: tuple[float, float]) -> str:
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
