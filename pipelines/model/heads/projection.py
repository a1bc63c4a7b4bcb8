"""The projection of a head's hidden states to the vocabulary, which it shares with its target."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from ...errors import UnsupportedModel
from .embedding import of_other_width

STATES = "last_hidden_state"  # what optimum-intel calls the output of a head without a projection


def share_projection(states: ov.Output, target: ov.Model, folder: Path) -> ov.Output:
    """Logits of the hidden states [..., width] of the head in `folder`: what the target makes of them, with the
    weights of `target`, which is of no other use afterwards.

    Raises UnsupportedModel for a head of a target of another width.
    """
    logits = next(r.input_value(0) for r in target.get_results() if "logits" in r.input_value(0).get_names())
    node = logits.get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    has, wants = (each.get_partial_shape()[-1].get_length() for each in (node.input_value(0), states))
    if has != wants:
        raise UnsupportedModel(of_other_width(folder, wants, has))
    node.input(0).replace_source_output(states)
    return logits


def take_states(model: ov.Model) -> ov.Output:
    """The hidden states that a head outputs; they are removed from the model's results. Raises StopIteration."""
    result = next(r for r in model.get_results() if STATES in r.input_value(0).get_names())
    states = result.input_value(0)
    model.remove_result(result)
    return states


def projection_bytes(logits: ov.Output) -> int:
    """The size of the weights of the projection that yields logits."""
    node = logits.get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    waiting, found = [node.input_value(1).get_node()], 0
    while waiting:
        each = waiting.pop()
        if each.get_type_name() == "Constant":
            found += each.get_byte_size()
        waiting += [value.get_node() for value in each.input_values()]
    return found
