"""MedusaModel: heads that each draft one token from the same hidden state: Medusa (arXiv 2401.10774) and Hydra
(arXiv 2402.05109)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops

from ...errors import UnsupportedModel, reason_of
from ..graph import gathered, index_inputs, logits_of, projection_of, weight_bytes
from ..paged_model import compiled_on_cpu, read_model
from ..paged_request import PagedRequest
from .embedding import embedding, of_other_vocabulary, of_other_width
from .head_model import HeadWindow, States
from .projection import share_projection

# Inputs and outputs of the IR, by head. A head has embeddings if it reads the tokens drafted before, and outputs either
# logits or what its target's projection reads.
STATES, EMBEDDINGS = "states.{}", "embeddings.{}"
LOGITS, PROJECTED = "logits.{}", "projected.{}"
TOKENS, PLACES = "tokens", "places.{}"


class MedusaModel:
    """Compiles the heads in `folder` with the embedding and the projection of the model in `target`, where they have
    none of their own. Not safe for concurrent calls.

    They have no cache: all tokens of a draft are computed from the target's last hidden state, which is all that they
    read of it. Own states hold this state, how many tokens were drafted, the token after the state, and the drafted
    tokens. So the head of that depth computes one row for each further token, and rows of all depths share a pass.

    Raises BrokenPair if an IR cannot be read, UnsupportedModel if these are no such heads or were made for a target of
    other sizes, and InvalidOption for a property that the device refuses.
    """

    reach = 1

    def __init__(self, folder: Path, target: Path, properties: Mapping[str, Any] | None = None) -> None:
        core = ov.Core()
        model = read_model(core, folder)
        try:
            names = {name for port in model.inputs for name in port.get_names()}
            self._heads = sum(STATES.format(head) in names for head in range(len(names)))
            self._reads_tokens = EMBEDDINGS.format(0) in names
            self.width = model.input(STATES.format(0)).get_partial_shape()[-1].get_length()
            theirs = read_model(core, target)
            if self._reads_tokens:
                _look_up(model, theirs, self._heads, folder)
            shares_projection = bool(_outputs(model, PROJECTED, self._heads))
            logits = _logits(model, theirs, self._heads, self.width, folder)
            for result in model.get_results():
                model.remove_result(result)
            model.add_results([ops.result(logits)])
            model.validate_nodes_and_infer_types()
        except (RuntimeError, StopIteration) as error:
            raise UnsupportedModel(
                f"{folder} is not built as `outrider export` builds Medusa heads ({reason_of(error)}): export it again."
            ) from error
        self.depth: int | None = self._heads
        self.vocabulary: NDArray[np.int64] = np.arange(logits.get_partial_shape()[-1].get_length())
        compiled = compiled_on_cpu(core, model, folder, properties)
        self._request = PagedRequest(compiled, 0, folder)
        self.weight_bytes = (folder / "openvino_model.bin").stat().st_size
        if shares_projection:
            self.weight_bytes += weight_bytes(projection_of(logits))
        self.cache_bytes = 0

    def forward(self, windows: Sequence[HeadWindow]) -> tuple[NDArray[np.float32], States]:
        own = np.zeros((len(windows), self.width + 1 + self._heads), np.float32)
        for row, window in zip(own, windows, strict=True):
            known = window.states[-1]
            row[: len(known)] = known
            row[self.width + 1 + int(row[self.width])] = window.tokens[-1]
        depths = own[:, self.width].astype(np.int64)
        tokens = own[:, self.width + 1 :]
        inputs: dict[str, Any] = {}
        for head in range(self._heads):
            (rows,) = np.nonzero(depths == head)
            inputs[STATES.format(head)] = own[rows, : self.width]
            if self._reads_tokens:
                inputs[PLACES.format(head)] = rows[:, np.newaxis] * self._heads + np.arange(head + 1)
        if self._reads_tokens:
            inputs[TOKENS] = tokens.ravel()
        (found,) = self._request.infer(inputs)
        logits = np.empty((len(windows), found.shape[-1]), np.float32)
        logits[np.argsort(depths, kind="stable")] = found
        own[:, self.width] += 1
        return logits, own

    def occupy(self, blocks: Sequence[int]) -> None:
        """There is no cache to fill."""

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        """A pass takes equally long however many rows of the target it begins from."""
        return self.forward([HeadWindow([0] * rows, context, blocks, np.zeros((rows, self.width), np.float32))])


def _logits(model: ov.Model, target: ov.Model, depth: int, width: int, folder: Path) -> ov.Output:
    """The logits of all rows, those of the first head first, float32 [rows, vocabulary]."""
    if projected := _outputs(model, PROJECTED, depth):
        return share_projection(ops.concat(projected, 0).output(0), target, folder)
    logits = ops.concat(_outputs(model, LOGITS, depth), 0).output(0)
    theirs = logits_of(target)
    wants, has = (each.get_partial_shape()[-1].get_length() for each in (logits, theirs))
    if has != wants:
        raise UnsupportedModel(of_other_vocabulary(folder, wants, has))
    has = projection_of(theirs).input_value(0).get_partial_shape()[-1].get_length()
    if has != width:
        raise UnsupportedModel(of_other_width(folder, width, has))
    return logits


def _look_up(model: ov.Model, target: ov.Model, depth: int, folder: Path) -> None:
    """Look up the tokens that the heads read: all in one list, in which each head's rows name places."""
    (tokens,) = index_inputs(model, TOKENS)
    looked_up = embedding(target)
    wants, has = (
        port.get_partial_shape()[-1].get_length() for port in (model.input(STATES.format(0)), looked_up.output(0))
    )
    if has != wants:
        raise UnsupportedModel(of_other_width(folder, wants, has))
    looked_up.input(1).replace_source_output(tokens.output(0))
    rows = ops.convert(looked_up.output(0), "f32").output(0)
    for head in range(depth):
        read = model.input(EMBEDDINGS.format(head)).get_node()
        (places,) = index_inputs(model, PLACES.format(head))
        places.set_partial_shape(ov.PartialShape([-1, head + 1]))
        width = read.get_partial_shape()[-1].get_length()
        flat = ops.reshape(gathered(rows, places), ops.constant(np.array([-1, width], np.int64)), False)
        for reader in list(read.output(0).get_target_inputs()):
            reader.replace_source_output(flat.output(0))
        model.remove_parameter(read)


def _outputs(model: ov.Model, name: str, depth: int) -> list[ov.Output]:
    by_name = {each: r.input_value(0) for r in model.get_results() for each in r.input_value(0).get_names()}
    return [by_name[name.format(head)] for head in range(depth) if name.format(head) in by_name]
