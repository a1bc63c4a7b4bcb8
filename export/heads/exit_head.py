"""Heads of an early exit (as in Kangaroo, arXiv 2404.18911) to OpenVINO's IR."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from outrider.pipelines.errors import UnsupportedModel
from outrider.pipelines.model.taps import HIDDEN_STATES

from ..checkpoint import Checkpoint
from ..convert import MODEL
from ..errors import ConversionFailed
from .ir import product, rows_of
from .optimum_intel import language_config
from .sizes import check_sizes
from .weights import read_weights

NORMED = "normed_states"


def convert_exit(head: Checkpoint, target: Checkpoint, folder: Path) -> None:
    """Write the head's IR and configuration to `folder`: from the residual stream after the layers below the exit,
    float32 [rows, width], to what the target's projection to the vocabulary reads, float32 [rows, width].

    Raises UnsupportedModel for a head of another target, and ConversionFailed.
    """
    config, of_target = head.config(), language_config(target)
    check_sizes(
        head,
        target,
        ("numbers in a hidden state", of_target.hidden_size, config.get("hidden_size")),
        ("tokens in its vocabulary", of_target.vocab_size, config.get("vocab_size")),
    )
    layer, number = config.get("exit_layer"), of_target.num_hidden_layers
    if type(layer) is not int or not 1 <= layer < number:
        raise UnsupportedModel(
            f"{head.source} leaves the model before layer {layer}, and {target.source} has {number}: choose the head "
            "that was made for this model."
        )
    try:
        weights = {name: weight.float().numpy() for name, weight in read_weights(head.folder).items()}
        model = _model(weights, config["hidden_size"], config["rms_norm_eps"])
    except (KeyError, OSError, RuntimeError) as error:
        raise ConversionFailed(
            f"{head.source} does not hold the weights of an exit head ({error}): choose another one."
        ) from error
    folder.mkdir(parents=True)
    ov.save_model(model, folder / MODEL)
    shutil.copy(head.folder / "config.json", folder)


def _model(weights: dict[str, NDArray[np.float32]], width: int, eps: float) -> ov.Model:
    states = rows_of(HIDDEN_STATES, width)
    read = _normed(states, weights["adapter.norm.weight"], eps)
    gate, up = (product(read, weights[f"adapter.{name}_proj.weight"]) for name in ("gate", "up"))
    adapted = states + product(ops.swish(gate) * up, weights["adapter.down_proj.weight"])
    normed = _normed(adapted, weights["norm.weight"], eps)
    normed.output(0).set_names({NORMED})
    return ov.Model([ops.result(normed)], [states], "exit")


def _normed(states: Any, weight: NDArray[np.float32], eps: float) -> Any:
    squares = ops.reduce_mean(states * states, ops.constant(np.array([-1], np.int64)), True)
    return states / ops.sqrt(squares + np.array([[eps]], np.float32)) * weight[np.newaxis]
