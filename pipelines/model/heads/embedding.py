"""The token embedding of a head, which it shares with its target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from ...errors import UnsupportedModel

INPUTS_EMBEDS = "inputs_embeds"  # what optimum-intel calls the input of a head without an embedding


def share_embedding(model: ov.Model, target: ov.Model, width: int, folder: Path) -> None:
    """Look tokens up in the target's embedding in place of the head's, which is a copy of it or was never trained.
    Raises UnsupportedModel for a head of a target of another width."""
    own, theirs = embedding(model), embedding(target)
    found = theirs.get_output_partial_shape(0)[-1].get_length()
    if found != own.get_output_partial_shape(0)[-1].get_length():
        raise UnsupportedModel(of_other_width(folder, width, found))
    readers = list(own.output(0).get_target_inputs())
    theirs.input(1).replace_source_output(own.input_value(1))
    for reader in readers:
        reader.replace_source_output(theirs.output(0))
    model.validate_nodes_and_infer_types()


def add_embedding(model: ov.Model, target: ov.Model, folder: Path) -> None:
    """Look tokens up in the target's embedding, in a head that reads what is found there: the input "input_ids" takes
    the place of INPUTS_EMBEDS. Raises UnsupportedModel for a head of a target of another width."""
    embedded = next(node for node in model.get_parameters() if INPUTS_EMBEDS in node.output(0).get_names())
    theirs = embedding(target)
    wants, has = embedded.get_partial_shape()[-1].get_length(), theirs.get_output_partial_shape(0)[-1].get_length()
    if has != wants:
        raise UnsupportedModel(of_other_width(folder, wants, has))
    tokens = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
    tokens.output(0).set_names({"input_ids"})
    theirs.input(1).replace_source_output(tokens.output(0))
    for reader in list(embedded.output(0).get_target_inputs()):
        reader.replace_source_output(theirs.output(0))
    model.remove_parameter(embedded)
    model.add_parameters([tokens])
    model.validate_nodes_and_infer_types()


def without_embedding(model: ov.Model) -> None:
    """Make the head's own embedding, which is not used (see `Eagle3Model`), a single row. OpenVINO GenAI puts the
    target's in the place of one of this name."""
    node = embedding(model)
    width = node.get_output_partial_shape(0)[-1].get_length()
    row = ops.constant(np.zeros((1, width), np.float32))
    row.set_friendly_name("self.model.embed_tokens.weight")
    node.input(0).replace_source_output(row.output(0))
    model.validate_nodes_and_infer_types()


def embedding(model: ov.Model) -> ov.Node:
    """The node that looks up the tokens' embeddings."""
    return next(node for node in model.get_ordered_ops() if node.get_type_name() == "Gather" and _reads_tokens(node))


def of_other_width(folder: Path, wants: int, has: int) -> str:
    """The message for the head in `folder` if it reads hidden states of width `wants` and the target's have `has`."""
    return (
        f"{folder} is a head of a target whose hidden states have {wants} numbers, and this target's have {has}: the "
        "head was made for another model."
    )


def of_other_vocabulary(folder: Path, wants: object, has: int) -> str:
    """The message for the head in `folder` if it knows `wants` tokens and the target has `has`."""
    return (
        f"{folder} is a head of a target with {wants} tokens in its vocabulary, and this target has {has}: the head "
        "was made for another model."
    )


def _reads_tokens(gather: ov.Node) -> bool:
    node = gather.input_value(1).get_node()
    while node.get_type_name() in ("Convert", "Unsqueeze"):
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Parameter" and "input_ids" in node.output(0).get_names()
