"""How much longer a pass takes if it has another number of rows than the last one.

    python -m tests.benchmark.row_changes FOLDER

OpenVINO prepares every operation of a model anew when a shape changes, even to one that it has seen before. Passes of
two sizes are timed in runs of the same size and in alternation, pairs of sizes in random order.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from outrider.pipelines.model.paged_model import PagedModel
from outrider.pipelines.model.paged_request import BLOCK_SIZE
from outrider.pipelines.privacy import keep_private

SIZES = ((1, 2), (1, 4), (1, 8), (7, 8), (8, 9), (4, 12), (1, 24))  # rows of alternating passes
CONTEXT = 200  # cached tokens
EACH = 2  # passes of a kind at a time


def measure(model: PagedModel, rounds: int, rng: random.Random) -> dict[tuple[int, int], list[float]]:
    """For each pair of sizes, in milliseconds: a pass of either size after one of the same size, then the same two
    after one of the other. Lower quartiles, since other programs only ever add to a time."""
    blocks = range(model.num_blocks)
    model.occupy(blocks)

    def pass_ms(rows: int) -> float:
        began = time.perf_counter()
        model.blind_pass(rows, CONTEXT, blocks)
        return 1e3 * (time.perf_counter() - began)

    times: dict[tuple[int, int], list[list[float]]] = {sizes: [[], [], [], []] for sizes in SIZES}
    for _ in track(range(rounds), "Timing", transient=True):
        for sizes in rng.sample(SIZES, len(SIZES)):
            *same, changed_first, changed_second = times[sizes]
            for rows, taken in zip(sizes, same, strict=True):
                pass_ms(rows)
                taken += [pass_ms(rows) for _ in range(EACH)]
            for _ in range(EACH):
                changed_first.append(pass_ms(sizes[0]))
                changed_second.append(pass_ms(sizes[1]))
    return {sizes: [float(np.quantile(each, 0.25)) for each in taken] for sizes, taken in times.items()}


def main(
    folder: Annotated[Path, typer.Argument(help="A model's folder, such as PAIR/target.")],
    rounds: Annotated[int, typer.Option(help="Rounds over all pairs of sizes.", min=1)] = 20,
    seed: Annotated[int | None, typer.Option(show_default="random")] = None,
) -> None:
    """Time passes of changing size."""
    keep_private()
    seed = random.randrange(2**31) if seed is None else seed
    model = PagedModel(folder, -(-(CONTEXT + 2 * max(map(max, SIZES))) // BLOCK_SIZE))
    found = measure(model, rounds, random.Random(seed))
    table = Table(title=f"ms of a pass, seed {seed}", title_justify="left", box=None)
    for title in ("rows", "same", "changed", "more"):
        table.add_column(title, justify="right")
    for (first, second), (same_first, same_second, changed_first, changed_second) in found.items():
        for rows, other, same, changed in (
            (first, second, same_first, changed_first),
            (second, first, same_second, changed_second),
        ):
            table.add_row(f"{rows} after {other}", f"{same:.2f}", f"{changed:.2f}", f"{changed - same:+.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
