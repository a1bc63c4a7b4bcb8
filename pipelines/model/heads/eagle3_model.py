"""Eagle3Model: a head that drafts from the target's hidden states (EAGLE-3, arXiv 2503.01840), with paged attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops
from openvino._offline_transformations import paged_attention_transformation

from ...errors import UnsupportedModel, reason_of
from ..graph import gathered, index_inputs, logits_of
from ..paged_model import compiled_on_cpu, read_model
from ..paged_request import BLOCK_SIZE, PagedRequest, pass_inputs
from ..taps import HIDDEN_STATES, gather_before_feed_forward
from ..target import Window
from .embedding import of_other_vocabulary, share_embedding
from .head_model import REACH, HeadWindow, States

OWN_STATES, ORDER = "own_states", "order"


class Eagle3Model:
    """Compiles the head in `folder`, as optimum-intel exports it, with the token embedding of the model in `target` and
    a cache of `num_blocks` blocks. Not safe for concurrent calls.

    The projection of the target's hidden states is computed for the rows that come from the target only, and the
    feed-forward part for the last row of each window.

    width: of its own hidden states; tap_width: of the target's.

    Raises BrokenPair if an IR cannot be read, UnsupportedModel if it is no such head or was made for a target of
    another width or with fewer tokens, and InvalidOption for a property that the device refuses.
    """

    def __init__(
        self, folder: Path, target: Path, num_blocks: int, properties: Mapping[str, Any] | None = None
    ) -> None:
        core = ov.Core()
        model, theirs = read_model(core, folder), read_model(core, target)
        self.reach = REACH
        self.depth: int | None = None
        try:
            self.vocabulary = _take_vocabulary(model)
            wants, has = int(self.vocabulary.max()) + 1, logits_of(theirs).get_partial_shape()[-1].get_length()
            if has < wants:
                raise UnsupportedModel(of_other_vocabulary(folder, f"at least {wants}", has))
            paged_attention_transformation(model)
            self.tap_width, self.width = _take_own_states(model)
            share_embedding(model, theirs, self.width, folder)
            _give_states(model, gather_before_feed_forward(model, folder))
        except (RuntimeError, StopIteration) as error:
            raise UnsupportedModel(
                f"{folder} is not built as optimum-intel builds EAGLE-3 heads ({reason_of(error)}): export it again."
            ) from error
        compiled = compiled_on_cpu(core, model, folder, properties)
        self._request = PagedRequest(compiled, num_blocks, folder)
        self.weight_bytes = (folder / "openvino_model.bin").stat().st_size

    @property
    def cache_bytes(self) -> int:
        return self._request.cache_bytes

    def forward(self, windows: Sequence[HeadWindow]) -> tuple[NDArray[np.float32], States]:
        plain = [Window(w.tokens, w.start, w.blocks) for w in windows]
        lengths = [len(w.tokens) for w in windows]
        paged, context = pass_inputs(plain, lengths, BLOCK_SIZE, self._request.spare_block)
        theirs = [w.states for w in windows if not w.is_own]
        own = [w.states for w in windows if w.is_own]
        places = {True: sum(map(len, theirs)), False: 0}  # of the own states, which follow the target's
        order: list[int] = []
        for window in windows:
            place = places[window.is_own]
            order += range(place, place + len(window.states))
            places[window.is_own] += len(window.states)
        inputs: dict[str, Any] = {
            **paged,
            "max_context_len": context,
            HIDDEN_STATES: np.concatenate(theirs) if theirs else np.empty((0, self.tap_width)),
            OWN_STATES: np.concatenate(own) if own else np.empty((0, self.width)),
            ORDER: order,
        }
        logits, states = self._request.infer(inputs)
        return logits.reshape(len(windows), -1), states.reshape(len(windows), -1)

    def occupy(self, blocks: Sequence[int]) -> None:
        self._request.occupy(blocks)

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        is_own = rows == 1
        states = np.zeros((rows, self.width if is_own else self.tap_width), np.float32)
        return self.forward([HeadWindow([0] * rows, context, blocks, states, is_own)])


def _take_vocabulary(model: ov.Model) -> NDArray[np.int64]:
    """The target's id for each id of the head; optimum-intel stores the difference of the two."""
    result = next(r for r in model.get_results() if "d2t" in r.input_value(0).get_names())
    differences = result.input_value(0).get_node().data.astype(np.int64)
    model.remove_result(result)
    return differences + np.arange(len(differences))


def _take_own_states(model: ov.Model) -> tuple[int, int]:
    """Let rows have the head's own hidden states, which bypass the projection of the target's. Returns the widths of
    the target's and of the head's own."""
    theirs = next(node for node in model.get_parameters() if HIDDEN_STATES in node.output(0).get_names())
    projection = next(iter(theirs.output(0).get_target_inputs())).get_node()
    tap_width = projection.input_value(1).get_partial_shape()[1].get_length()
    width = projection.input_value(1).get_partial_shape()[0].get_length()
    own = ops.parameter([-1, width], ov.Type.f32, name=OWN_STATES)
    own.output(0).set_names({OWN_STATES})
    model.add_parameters([own])
    (order,) = index_inputs(model, ORDER)
    readers = list(projection.output(0).get_target_inputs())
    projected = ops.reshape(projection, ops.constant(np.array([-1, width], np.int64)), False)
    ordered = gathered(ops.concat([projected, own], 0).output(0), order)
    row = ops.unsqueeze(ordered, ops.constant(1, dtype=np.int64)).output(0)  # a sequence of one row each, as they come
    for reader in readers:
        reader.replace_source_output(row)
    theirs.set_partial_shape(ov.PartialShape([-1, tap_width]))
    model.validate_nodes_and_infer_types()
    return tap_width, width


def _give_states(model: ov.Model, states: ov.Output) -> None:
    """Put out hidden states from before the last norm: the next row is computed from them."""
    states.set_names({OWN_STATES})
    model.add_results([ops.result(states)])
    model.validate_nodes_and_infer_types()
