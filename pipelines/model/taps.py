"""Taps: the residual stream after chosen layers as a further output of a model, for heads that draft from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ..errors import UnsupportedModel
from .graph import gathered, index_inputs, logits_of, projection_of, upstream

HIDDEN_STATES = "hidden_states"
ADDS = 2  # to the residual stream in each layer: of its attention, and of its feed-forward part


def add_taps(model: ov.Model, layers: Sequence[int], folder: Path) -> None:
    """Add an output HIDDEN_STATES, float32 [rows, layers * width], to a paged model whose rows are selected (see
    `gather_wanted_rows`): the residual stream after each of `layers`, concatenated.

    Raises what `tapped` raises.
    """
    streams = tapped(model, layers, folder)
    width = streams[0].get_partial_shape()[-1].get_length()
    joined = ops.concat(streams, -1) if len(streams) > 1 else streams[0]
    states = ops.reshape(joined, ops.constant(np.array([-1, len(layers) * width], np.int64)), False)
    output = ops.convert(states, "f32").output(0)
    output.set_names({HIDDEN_STATES})
    model.add_results([ops.result(output)])
    model.validate_nodes_and_infer_types()


def keep_states_in_f32(model: ov.Model) -> None:
    """Add a last output that nobody needs: what the projection to the vocabulary reads.

    In bf16 OpenVINO leaves all that lies between a matrix product and an output in f32. So the residual stream would be
    rounded or not depending on which of its layers are outputs, for a head or for the next part of a model that is cut,
    and the same seed would give another text. With this output it never is.
    """
    states = projected_states(model)
    if states.get_node().get_type_name() != "Parameter":
        model.add_results([ops.result(states)])


def tapped(model: ov.Model, layers: Sequence[int], folder: Path) -> list[ov.Output]:
    """The residual stream after each of `layers`, counted from 0. The number of layers, as an index, stands for what
    the projection to the vocabulary reads: the last layer's, normed.

    folder: of the model, for messages.

    Raises UnsupportedModel if the model has no such layers, or none that `layer_outputs` finds.
    """
    streams = layer_outputs(model, folder, "a head cannot read its hidden states: leave the head out of the pair")
    beyond = [layer for layer in layers if not 0 <= layer <= len(streams)]
    if beyond:
        raise UnsupportedModel(
            f"The head wants hidden states of layer {beyond[0]}, and {folder} has {len(streams)}: the head was made "
            "for another model."
        )
    outputs = [*streams, projected_states(model)]
    return [outputs[layer] for layer in layers]


def layer_outputs(model: ov.Model, folder: Path, so: str) -> list[ov.Output]:
    """The residual stream after every layer.

    so: what does not work if it has none, and what to do, for the message.

    Raises UnsupportedModel if the layers do not add to a residual stream twice each, as those of Llama, Qwen, Mistral,
    Phi-3 and Gemma do.
    """
    streams = residual_streams(model)
    num_layers = _num_layers(model)
    if len(streams) != ADDS * num_layers:
        raise UnsupportedModel(
            f"{folder} has {num_layers} layers and {len(streams)} sums in its residual stream, so {so}."
        )
    return streams[ADDS - 1 :: ADDS]


def projected_states(model: ov.Model) -> ov.Output:
    """The hidden states that the projection to the vocabulary reads, of all rows: before they are selected."""
    return projection_of(logits_of(model)).input_value(0).get_node().input_value(0)


def gather_before_feed_forward(model: ov.Model, folder: Path) -> ov.Output:
    """Compute the feed-forward part of the last layer, and all after it, for the wanted rows only: of the others, the
    cache holds keys and values. Returns the hidden states of the wanted rows after the last layer. The new input "rows"
    has their indices.

    Raises UnsupportedModel for a model without sums in its residual stream.
    """
    streams = residual_streams(model)
    if not streams:
        raise UnsupportedModel(f"{folder} has no sums in its residual stream.")
    # A layer that adds both of its parts at once has one sum.
    stream = streams[-ADDS] if len(streams) == ADDS * _num_layers(model) else streams[-1]
    readers = list(stream.get_target_inputs())
    (rows,) = index_inputs(model, "rows")
    wanted = gathered(stream, rows)
    for reader in readers:
        reader.replace_source_output(wanted)
    model.validate_nodes_and_infer_types()
    return wanted if stream is streams[-1] else streams[-1]


def residual_streams(model: ov.Model) -> list[ov.Output]:
    """The residual stream after each sum, from the embedding on, in a model with the output "logits"."""
    stream = next((node.output(0) for node in upstream(logits_of(model)) if _is_sum(node)), None)
    streams = []
    while stream is not None and stream.get_node().get_type_name() == "Add":
        streams.append(stream)
        # A layer reads the stream, to compute what it adds, and adds it: no other summand has two readers.
        stream = next((each for each in stream.get_node().input_values() if len(each.get_target_inputs()) > 1), None)
    return streams[::-1]


def _num_layers(model: ov.Model) -> int:
    return sum(node.get_type_name() == "PagedAttentionExtension" for node in model.get_ops())


def _is_sum(node: ov.Node) -> bool:
    """Whether a node adds two hidden states, not a mean and an epsilon in a norm, or a product and a bias."""
    if node.get_type_name() != "Add":
        return False
    width = node.get_output_partial_shape(0)[-1]
    return (width.is_dynamic or width.get_length() > 1) and not any(map(_is_constant, node.input_values()))


def _is_constant(output: ov.Output) -> bool:
    node = output.get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant"
