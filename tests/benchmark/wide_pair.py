"""Make the pair that speeds are measured on: the embedded pair in the shape of one of real size.

    python -m tests.benchmark.wide_pair FOLDER      (make wide-pair OUT=FOLDER)

FOLDER gets the widened checkpoints, `target`, `draft` and `head`, and the exported `pair`: the target of 980 million
parameters and the head of 61 million at int4 in groups of 128, the draft of 32 million at int8. They answer as the
embedded pair does and cost as much as other models of their shape. It takes a few minutes and some gigabytes of memory
and disk.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from outrider.export.command import clocked
from outrider.export.compression import Compression
from outrider.export.pair_export import export_pair
from outrider.export.widen import Shape, widen_checkpoint, widened_config, widened_head
from outrider.models import pyscout

CHECKPOINTS = Path(pyscout.__file__).parent / "checkpoints"
SHAPES = {
    "target": Shape(hidden_size=2048, num_layers=16, num_heads=32, num_kv_heads=8, intermediate_size=8192),
    "draft": Shape(hidden_size=512, num_layers=8, num_heads=8, num_kv_heads=2, intermediate_size=2048),
}
GROUP = 128  # weights of int4 that share a scale
INT4 = Compression("int4", group_size=GROUP)
WEIGHTS = {"target": INT4, "draft": Compression("int8"), "head": INT4}
CONTEXT = 8192  # tokens; the rotary embedding has no table that would end, and long contexts are timed, not read


def make(folder: Path) -> Path:
    """Write the checkpoints and the pair to `folder` and return the pair's. Raises subclasses of OutriderError."""
    announce = clocked()
    for role, shape in SHAPES.items():
        announce(f"Widening the {role}")
        count = widen_checkpoint(CHECKPOINTS / role, folder / role, shape)
        _set_context(folder / role / "config.json")
        announce(f"The {role} has {count / 1e6:,.0f} million parameters")
    announce("Widening the head")
    widen_head(CHECKPOINTS / "head", folder / "head")
    return export_pair(
        folder / "target",
        folder / "draft",
        folder / "pair",
        target_compression=WEIGHTS["target"],
        draft_compression=WEIGHTS["draft"],
        head_compression=WEIGHTS["head"],
        head=folder / "head",
        announce=announce,
    )


def widen_head(source: Path, out: Path) -> None:
    """Widen a head of the embedded target, of any kind, into the new folder `out`."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    of_target = json.loads((CHECKPOINTS / "target" / "config.json").read_text(encoding="utf-8"))
    (weights,) = source.glob("*.safetensors")
    sizes = LlamaConfig(**{**of_target, **config})
    share = sizes.intermediate_size / of_target["intermediate_size"]
    units = math.ceil(share * SHAPES["target"].intermediate_size / GROUP) * GROUP
    shape = replace(SHAPES["target"], intermediate_size=units)
    wide = widened_head(load_file(weights), sizes, shape)
    out.mkdir()
    save_file(wide, out / weights.name, metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(widened_config(config, shape), indent=2) + "\n", encoding="utf-8")
    _set_context(out / "config.json")


def _set_context(path: Path) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}, indent=2) + "\n", encoding="utf-8")


def main(folder: Annotated[Path, typer.Argument(help="Folder to make; its parts must not be there yet.")]) -> None:
    """Make the pair of real size that speeds are measured on."""
    typer.echo(f"Made {make(folder)}.")


if __name__ == "__main__":
    typer.run(main)
