"""`python -m outrider.models.pyscout --size small`: the whole recipe, resumed where it was interrupted."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from outrider.export.extra import require_extra
from outrider.pipelines.errors import OutriderError
from outrider.pipelines.privacy import keep_private


def _positive(text: str) -> float:
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def main() -> None:
    keep_private(network=True)
    try:
        require_extra()
        run()
    except OutriderError as error:
        print(f"pyscout: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nInterrupted. The same command continues from here.", file=sys.stderr)
        sys.exit(130)


def run() -> None:
    from .recipe import Run, run_all
    from .sizes import SIZES

    parser = argparse.ArgumentParser(
        prog="python -m outrider.models.pyscout",
        description="Train the embedded pair: data, tokenizer, target, draft, evaluation, checkpoints, model card. "
        "If interrupted, the same command continues where it was; what is complete in the work folder is kept.",
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--work", type=Path, default=Path("build/pyscout"), help="folder for data and states")
    parser.add_argument("--out", type=Path, help="folder for checkpoints, pair and card, if not pyscout in that one")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to read instead of downloading the pinned ones")
    parser.add_argument("--minutes", type=_positive, default=math.inf, help="longest training of the target")
    parser.add_argument(
        "--draft-minutes", type=_positive, default=math.inf, help="longest training of the draft's start"
    )
    parser.add_argument("--prompts", type=_count, help="prompts whose answers the draft learns from, if not the size's")
    parser.add_argument("--cases", type=_count, default=300, help="held-out functions for each exact-match figure")
    parser.add_argument("--acceptance-cases", type=_count, default=128, help="prompts for each acceptance figure")
    options = parser.parse_args()
    options.out = options.out or options.work / "pyscout"
    run_all(Run(**vars(options)))
    print(f"Made {options.out}. Try it: outrider chat --pair {options.out / 'pair'}")


if __name__ == "__main__":
    main()
