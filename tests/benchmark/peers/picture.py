"""Draw what the peers' benchmark wrote with `--out`: each mode's rate against OpenVINO GenAI's plain decoding.

python -m tests.benchmark.peers.picture edit.json batch.json --out speed.png
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import matplotlib as mpl
import typer
from matplotlib import pyplot as plt

from .results import BASE, Who

SHOWN: dict[Who, tuple[str, str]] = {
    ("Outrider", "auto"): ("Outrider, auto", "#0f766e"),
    ("OpenVINO GenAI", "prompt lookup"): ("OpenVINO GenAI, prompt lookup", "#0284c7"),
    ("OpenVINO GenAI", "draft model"): ("OpenVINO GenAI, draft model", "#f59e0b"),
    ("Outrider", "off"): ("Outrider, off", "#94a3b8"),
}


def ratios(files: Sequence[Path]) -> dict[str, dict[Who, float]]:
    """For each family and mode, the median over the prompts of its rate by that of BASE."""
    rates: dict[tuple[str, int], dict[Who, float]] = defaultdict(dict)
    for file in files:
        for answer in json.loads(file.read_text(encoding="utf-8"))["answers"]:
            if answer["tokens_per_s"] is not None:
                who = answer["peer"], answer["mode"]
                rates[answer["family"], answer["task"]][who] = answer["tokens_per_s"]
    found: dict[str, dict[Who, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (family, _), by_mode in rates.items():
        for who, rate in by_mode.items():
            found[family][who].append(rate / by_mode[BASE])
    return {family: {who: median(all_) for who, all_ in modes.items()} for family, modes in found.items()}


def main(
    files: Annotated[list[Path], typer.Argument(help="What the benchmark wrote.")],
    out: Annotated[Path, typer.Option(help="The picture: .png or .svg.")],
) -> None:
    """Bars of each family and mode, plain decoding of OpenVINO GenAI being 1."""
    found = ratios(files)
    mpl.rcParams.update({"font.family": "sans-serif", "font.size": 10})
    figure, axes = plt.subplots(figsize=(8, 0.9 * len(found) + 1.2), layout="constrained")
    shown = {who: style for who, style in SHOWN.items() if any(who in modes for modes in found.values())}
    height = 0.8 / len(shown)
    for row, (who, (label, colour)) in enumerate(shown.items()):
        at = [family + row * height for family in range(len(found))]
        values = [modes.get(who, 0.0) for modes in found.values()]
        bars = axes.barh(at, values, height * 0.9, label=label, color=colour)
        axes.bar_label(bars, [f"{value:.2f}" if value else "" for value in values], padding=3, fontsize=8)
    axes.axvline(1, color="#0f172a", linewidth=1)
    axes.set_yticks([family + 0.4 - height / 2 for family in range(len(found))], list(found))
    axes.invert_yaxis()
    axes.set_xlabel("tokens per second, times OpenVINO GenAI's plain decoding (line)")
    figure.legend(frameon=False, loc="outside lower center", ncols=len(shown))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(out, dpi=160)


if __name__ == "__main__":
    typer.run(main)
