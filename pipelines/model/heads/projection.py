"""The projection of a head's hidden states to the vocabulary, which it shares with its target."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from ...errors import UnsupportedModel
from ..graph import logits_of, projection_of
from .embedding import of_other_width

STATES = "last_hidden_state"  # what optimum-intel calls the output of a head without a projection


def share_projection(states: ov.Output, target: ov.Model, folder: Path) -> ov.Output:
    """Logits of the hidden states [..., width] of the head in `folder`: what the target makes of them, with the
    weights of `target`, which is of no other use afterwards.

    Raises UnsupportedModel for a head of a target of another width, and StopIteration for a target without logits.
    """
    logits = logits_of(target)
    projection = projection_of(logits)
    has, wants = (each.get_partial_shape()[-1].get_length() for each in (projection.input_value(0), states))
    if has != wants:
        raise UnsupportedModel(of_other_width(folder, wants, has))
    projection.input(0).replace_source_output(states)
    return logits


def take_states(model: ov.Model) -> ov.Output:
    """The hidden states that a head outputs; they are removed from the model's results. Raises StopIteration."""
    result = next(r for r in model.get_results() if STATES in r.input_value(0).get_names())
    states = result.input_value(0)
    model.remove_result(result)
    return states
