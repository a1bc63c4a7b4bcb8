"""Parts: a paged model cut after some of its layers into separate models, which share inputs and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov
from openvino import opset15 as ops

from ..errors import UnsupportedModel
from .graph import logits_of, upstream, weight_bytes
from .paged_request import is_cache
from .taps import layer_outputs, projected_states

STATES = "states"  # the residual stream that a part continues from


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive layers of a model, or its projection to the vocabulary, which has none.

    model: reads STATES, except the first part; its first output is the STATES of the next part, or the logits. The
        others are the taps that lie in it.
    taps: their places among all taps.
    weight_bytes: size of the weights of its matrix products.
    """

    model: ov.Model
    layers: range
    taps: tuple[int, ...]
    weight_bytes: int


def cut(
    model: ov.Model,
    skipped: Sequence[int],
    is_normed: bool,
    taps: Sequence[ov.Output],
    folder: Path,
    is_apart: bool = False,
) -> list[Part]:
    """Cut a paged model with selected rows at the boundaries of the layers that drafts skip, or after every layer if
    `is_apart`, and before its projection. The model is of no use afterwards, as its nodes are changed.

    is_normed: whether the norm before the projection belongs to the last layers instead of the projection.
    taps: hidden states that the parts are to output.
    folder: of the model, for messages.

    Raises UnsupportedModel if the model cannot be cut there.
    """
    streams = layer_outputs(model, folder, "it cannot be split: export the pair without layers to skip")
    require_layers(skipped, len(streams), folder)
    is_skipped = [layer in skipped for layer in range(len(streams))]
    behind = [layer for layer in range(len(streams) - 1) if is_apart or is_skipped[layer] != is_skipped[layer + 1]]
    cuts = [*(streams[layer] for layer in behind), projected_states(model) if is_normed else streams[-1]]
    logits = logits_of(model)
    # Before cutting, every tap lies upstream of the first cut that comes after it.
    places = [next((i for i, each in enumerate(cuts) if _is_upstream(tap, each)), len(cuts)) for tap in taps]
    for stream in cuts:
        states = ops.parameter(stream.get_partial_shape(), stream.get_element_type(), name=STATES)
        states.output(0).set_names({STATES})
        for reader in list(stream.get_target_inputs()):
            reader.replace_source_output(states.output(0))
    ends = [0, *(layer + 1 for layer in behind), len(streams), len(streams)]
    parts = []
    for i, output in enumerate([*cuts, logits]):
        its_taps = tuple(tap for tap, place in enumerate(places) if place == i)
        outputs = [output, *(taps[tap] for tap in its_taps)]
        part = ov.Model([ops.result(each) for each in outputs], _parameters(outputs)).clone()
        parts.append(Part(part, range(ends[i], ends[i + 1]), its_taps, _product_bytes(part)))
    _require_own_caches([part.model for part in parts], folder)
    return parts


def beginning(model: ov.Model, num_layers: int, folder: Path) -> Part:
    """The first layers of a paged model, and its projection. The model is of no use afterwards, as its nodes are
    changed. Raises UnsupportedModel if the layers cannot be told apart."""
    streams = layer_outputs(model, folder, "it is tried as a whole")
    for reader in list(streams[-1].get_target_inputs()):
        reader.replace_source_output(streams[num_layers - 1])
    logits = logits_of(model)
    part = ov.Model([ops.result(logits)], _parameters([logits])).clone()
    return Part(part, range(num_layers), (), _product_bytes(part))


def require_layers(skipped: Sequence[int], num_layers: int, folder: Path) -> None:
    """The first layer is never skipped, since it reads the tokens. Raises UnsupportedModel."""
    wrong = [layer for layer in skipped if not 1 <= layer < num_layers]
    if wrong or not skipped:
        raise UnsupportedModel(
            f"Drafts cannot skip layer {wrong[0] if wrong else 'none'} of {folder}: choose layers from 1 to "
            f"{num_layers - 1}."
        )


def _is_upstream(output: ov.Output, of: ov.Output) -> bool:
    return any(node.get_name() == output.get_node().get_name() for node in upstream(of))


def _parameters(outputs: Sequence[ov.Output]) -> list[Any]:
    return [node for node in upstream(*outputs) if node.get_type_name() == "Parameter"]


def _product_bytes(model: ov.Model) -> int:
    return sum(weight_bytes(node) for node in model.get_ops() if node.get_type_name() == "MatMul")


def _require_own_caches(parts: Sequence[ov.Model], folder: Path) -> None:
    names = [name for part in parts for port in part.inputs if is_cache(name := port.get_any_name())]
    if len({*names}) < len(names):
        raise UnsupportedModel(
            f"Layers of {folder} share keys and values, so it cannot be split: export the pair without layers to skip."
        )
