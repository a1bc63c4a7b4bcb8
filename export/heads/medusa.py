"""Medusa heads (arXiv 2401.10774) as they are published, and Hydra heads (arXiv 2402.05109) as `outrider distill` saves
them, to OpenVINO's IR."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from outrider.models.errors import NoSuchModel
from outrider.pipelines.model.heads.head_kind import LAYERS, MEDUSA
from outrider.pipelines.model.heads.medusa_model import EMBEDDINGS, LOGITS, PROJECTED, STATES

from ..checkpoint import Checkpoint
from ..convert import MODEL
from ..errors import ConversionFailed
from .ir import product, rows_of
from .optimum_intel import language_config
from .sizes import check_sizes

Weights = dict[str, NDArray[np.float32]]


def convert_medusa(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
    """Write the IR of all heads and their configuration to `folder`.

    Weights are named `{head}.{block}.linear.weight` and `.bias` for the residual blocks, `{head}.{blocks}.weight` for a
    projection, unless the target's is used, and `{head}.fc.weight` for the map that Hydra's heads have before the
    blocks, from the state and the embeddings of the tokens after it, oldest first. The number of heads is taken from
    the weights: the configurations of published heads name fewer.

    Raises UnsupportedModel for heads of another target, NoSuchModel for a damaged file, and ConversionFailed.
    """
    of_target = language_config(target)
    try:
        weights = _weights(head)
        count = 1 + max(int(name.split(".")[0]) for name in weights)
        width = weights["0.0.linear.weight"].shape[0]
        check_sizes(head, target, ("numbers in a hidden state", of_target.hidden_size, width))
        inputs, results = [], []
        for number in range(count):
            own = {name.split(".", 1)[1]: weight for name, weight in weights.items() if name.startswith(f"{number}.")}
            read, result = _head(number, own, width)
            inputs += read
            results.append(result)
    except (KeyError, ValueError) as error:
        raise ConversionFailed(
            f"{head.source} does not hold the weights of {head.head_kind} heads ({error}): choose another one."
        ) from error
    vocabularies = {r.get_input_partial_shape(0)[-1].get_length() for r in results if _is_projected(r)}
    check_sizes(head, target, *(("tokens in its vocabulary", of_target.vocab_size, each) for each in vocabularies))
    if vocabularies and not all(map(_is_projected, results)):
        raise ConversionFailed(
            f"{head.source} has projections to the vocabulary for some heads only: choose another one."
        )
    model = ov.Model(results, inputs, head.head_kind)
    model.set_rt_info(head.head_kind, [MEDUSA])
    model.set_rt_info([of_target.num_hidden_layers], [LAYERS])
    folder.mkdir(parents=True)
    ov.save_model(model, folder / MODEL)
    shutil.copy(head.folder / "config.json", folder)


def _head(number: int, weights: Weights, width: int) -> tuple[list[Any], Any]:
    """The inputs and the result of one head."""
    state = rows_of(STATES.format(number), width)
    inputs, left = [state], dict(weights)
    if "fc.weight" in left:
        inputs.append(rows_of(EMBEDDINGS.format(number), (number + 1) * width))
        state = product(ops.concat(inputs, -1), left.pop("fc.weight"))
    block = 0
    while (name := f"{block}.linear.weight") in left:
        state = state + ops.swish(product(state, left.pop(name)) + left.pop(f"{block}.linear.bias")[np.newaxis])
        block += 1
    name = PROJECTED
    if (own := left.pop(f"{block}.weight", None)) is not None:
        state, name = product(state, own), LOGITS
    if left:
        raise ValueError(f"{number}.{min(left)} is not known")
    state.output(0).set_names({name.format(number)})
    return inputs, ops.result(state)


def _is_projected(result: Any) -> bool:
    return any(name.startswith(LOGITS.format("")) for name in result.input_value(0).get_names())


def _weights(head: Checkpoint) -> Weights:
    """The weights of the only file, by the part of their names that begins with the number of the head."""
    from safetensors.torch import load_file
    from torch import load

    (file,) = (each for each in sorted(head.folder.iterdir()) if each.stem == f"{head.head_kind}_lm_head")
    try:
        read = load_file(file) if file.suffix == ".safetensors" else load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise NoSuchModel(
            f"{file} is damaged or incomplete, or what Git LFS leaves in a file's place: download it again."
        ) from error
    return {name.removeprefix("medusa_head."): weight.float().numpy() for name, weight in read.items()}
