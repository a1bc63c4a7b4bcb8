"""The kinds of heads: which one a folder holds, what it reads of its target, and the model that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from ...errors import UnsupportedModel
from ..paged_model import read_model
from ..pair import MTP_MODEL, head_model, read_json
from .dflash_model import DFlashModel, layers_read
from .eagle3_model import Eagle3Model
from .head_model import HeadModel
from .medusa_model import MedusaModel
from .mtp_model import MtpModel

# In the runtime information of such models. optimum-intel itself writes "eagle3_mode" and "dflash_mode"; a head of
# multi-token prediction it marks by the name of the file, MTP_MODEL.
EAGLE3, DFLASH, MTP = "eagle3_mode", "dflash_mode", "mtp_mode"
MEDUSA = "medusa_mode"  # there as well, "medusa" or "hydra"
LAYERS = "hidden_layers_list"  # there as well, as OpenVINO GenAI reads it


def open_head(folder: Path, target: Path, num_blocks: int, properties: Mapping[str, Any] | None = None) -> HeadModel:
    """The head in `folder`, compiled, with what it shares with the model in `target`, and a cache of `num_blocks`
    blocks.

    Raises BrokenPair if an IR cannot be read, UnsupportedModel if it is no head or was made for another target, and
    InvalidOption for a property that the device refuses.
    """
    kind = _kind(_read(folder), folder)
    if kind == EAGLE3:
        return Eagle3Model(folder, target, num_blocks, properties)
    if kind == MTP:
        return MtpModel(folder, target, num_blocks, properties)
    if kind == DFLASH:
        return DFlashModel(folder, target, num_blocks, properties)
    return MedusaModel(folder, target, properties)


def tapped_layers(folder: Path, num_layers: int) -> tuple[int, ...]:
    """The layers of a target, counted from 0, whose outputs the head in `folder` reads; `num_layers` is what the
    projection to the vocabulary reads. An EAGLE-3 head that does not say reads those that OpenVINO GenAI takes by
    default.

    Raises BrokenPair if the IR cannot be read, UnsupportedModel if it is no head or a DFlash head that does not say.
    """
    model = _read(folder)
    kind = _kind(model, folder)
    if kind == DFLASH:
        return layers_read(model, folder)
    if model.has_rt_info([LAYERS]):
        return tuple(int(layer) for layer in model.get_rt_info([LAYERS]).astype(str).replace(",", " ").split())
    return (2, num_layers // 2, num_layers - 3) if kind == EAGLE3 else (num_layers,)


def _read(folder: Path) -> ov.Model:
    return read_model(ov.Core(), folder, head_model(folder))


def _kind(model: ov.Model, folder: Path) -> str:
    if head_model(folder) == MTP_MODEL:
        return MTP
    for name in (EAGLE3, DFLASH, MTP):
        if model.has_rt_info([name]) and model.get_rt_info([name]).astype(str) == "True":
            return name
    if model.has_rt_info([MEDUSA]):
        return MEDUSA
    if "exit_layer" in read_json(folder / "config.json"):
        raise UnsupportedModel(
            f"{folder} is the head of an early exit, which only works as part of the pair that it was exported into: "
            "open that pair, or give the head's checkpoint to `outrider export --target TARGET --head CHECKPOINT`."
        )
    raise UnsupportedModel(f"{folder} is not a head that is known: export it with `outrider export --head`.")
