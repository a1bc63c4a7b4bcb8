"""Pairs of the embedded target that draft in other ways than the embedded pair."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from outrider.models import pyscout
from outrider.pipelines.model.pair import read_json
from outrider.pipelines.speculation.drafters.head import Head
from outrider.pipelines.speculation.drafters.self_speculative import EXIT, SKIPPING

from .dflash import random_head, save_head

CHECKPOINTS = Path(pyscout.__file__).parent / "checkpoints"
HEADS = ("mtp", "medusa", "hydra", "dflash")
WAYS = ("skip", "exit", *HEADS)
SKIPPED = [2, 4]  # layers, of six
SURE = 8  # times the logits of a random head: it drafts only what it is sure of


def mode_of(way: str) -> str:
    """The mode in which such a pair drafts in this way alone."""
    return "head" if way in HEADS else way


def drafter_of(way: str) -> str:
    """The drafter's name in figures."""
    return {"skip": SKIPPING, "exit": EXIT}.get(way, Head.name)


def make_pairs(embedded: Path, folder: Path) -> Path:
    """A pair for each way, in a folder of its name. The early exit stands beside the models of the embedded pair; the
    others draft alone."""
    from transformers import AutoConfig

    from outrider.export.checkpoint import find_checkpoint
    from outrider.export.heads.convert_head import convert_head

    target = find_checkpoint(str(CHECKPOINTS / "target"), False, print)
    head = random_head(AutoConfig.from_pretrained(target.folder))
    head.norm.weight.data *= SURE
    dflash = save_head(folder / "checkpoint", head)
    for way in WAYS:
        pair, models = folder / way, read_json(embedded / "pair.json")["models"]
        roles = [*models] if way == "exit" else ["target"]
        models = {role: models[role] for role in roles}
        for role in roles:
            shutil.copytree(embedded / role, pair / role)
        if way == "skip":
            models["target"]["skip_layers"] = SKIPPED
        else:
            role = "exit" if way == "exit" else "head"
            models[role] = {"kind": way}
            checkpoint = dflash if way == "dflash" else CHECKPOINTS / way
            convert_head(find_checkpoint(str(checkpoint), False, print), target, pair / role)
        (pair / "pair.json").write_text(json.dumps({"models": models}), encoding="utf-8")
    return folder
