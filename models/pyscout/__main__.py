"""`python -m outrider.models.pyscout --size small`: the whole recipe, resumed where it was interrupted."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from .recipe import Run, run_all
from .sizes import SIZES


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m outrider.models.pyscout",
        description="Train the embedded pair: data, tokenizer, target, draft, evaluation, checkpoints, model card.",
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--work", type=Path, default=Path("build/pyscout"), help="folder for data and states")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to read in place of downloading the pinned ones")
    parser.add_argument("--minutes", type=float, default=math.inf, help="longest training of the target")
    parser.add_argument("--draft-minutes", type=float, default=math.inf, help="longest training of the draft's start")
    parser.add_argument("--cases", type=int, default=300, help="held-out functions for each exact-match figure")
    parser.add_argument("--acceptance-cases", type=int, default=128, help="prompts for each acceptance figure")
    options = parser.parse_args()
    run_all(Run(**vars(options)))


if __name__ == "__main__":
    main()
