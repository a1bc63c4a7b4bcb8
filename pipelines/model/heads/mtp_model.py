"""MtpModel: a multi-token-prediction head (DeepSeek-V3, arXiv 2412.19437), with paged attention."""

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
from ..graph import logits_of, projection_of, weight_bytes
from ..paged_model import compiled_on_cpu, read_model
from ..paged_request import BLOCK_SIZE, PagedRequest, pass_inputs
from ..pair import head_model
from ..taps import HIDDEN_STATES, gather_before_feed_forward
from ..target import Window
from .embedding import INPUTS_EMBEDS, add_embedding
from .head_model import REACH, HeadWindow, States
from .projection import STATES, share_projection, take_states

TOKENS_RANK = 2  # of an input that has one number a token: sequences, and their tokens
INPUTS = {INPUTS_EMBEDS, HIDDEN_STATES, "attention_mask", "position_ids", "beam_idx"}


class MtpModel:
    """Compiles the head in `folder`, as optimum-intel exports such heads, with the token embedding and the projection
    of the model in `target`, and a cache of `num_blocks` blocks. Not safe for concurrent calls.

    A row reads the hidden state that the target's projection reads, or in its place the head's output in the previous
    row.

    width: of a hidden state, the target's and its own.

    Raises BrokenPair if an IR cannot be read, UnsupportedModel if it is no such head or was made for a target of
    another width, and InvalidOption for a property that the device refuses.
    """

    def __init__(
        self, folder: Path, target: Path, num_blocks: int, properties: Mapping[str, Any] | None = None
    ) -> None:
        core = ov.Core()
        file = folder / head_model(folder)
        model = read_model(core, folder, file.name)
        theirs = read_model(core, target)
        _check_ports(model, file)
        self.reach = REACH
        self.depth: int | None = None
        try:
            add_embedding(model, theirs, folder)
            logits = share_projection(take_states(model), theirs, folder)
            logits.set_names({"logits"})
            model.add_results([ops.result(logits)])
            paged_attention_transformation(model)
            self.width = _take_rows(model)
            gather_before_feed_forward(model, folder)
            model.add_results([ops.result(projection_of(logits_of(model)).input_value(0))])
            model.validate_nodes_and_infer_types()
        except (RuntimeError, StopIteration) as error:
            raise UnsupportedModel(
                f"{folder} is not built as optimum-intel builds heads of multi-token prediction ({reason_of(error)}): "
                "export it again."
            ) from error
        compiled = compiled_on_cpu(core, model, folder, properties)
        self.vocabulary: NDArray[np.int64] = np.arange(compiled.output(0).partial_shape[-1].get_length())
        self._request = PagedRequest(compiled, num_blocks, folder)
        self.weight_bytes = file.with_suffix(".bin").stat().st_size + weight_bytes(projection_of(logits))

    @property
    def cache_bytes(self) -> int:
        return self._request.cache_bytes

    def forward(self, windows: Sequence[HeadWindow]) -> tuple[NDArray[np.float32], States]:
        plain = [Window(w.tokens, w.start, w.blocks) for w in windows]
        lengths = [len(w.tokens) for w in windows]
        paged, context = pass_inputs(plain, lengths, BLOCK_SIZE, self._request.spare_block)
        states = np.concatenate([w.states for w in windows])
        logits, own = self._request.infer({**paged, "max_context_len": context, HIDDEN_STATES: states})
        return logits.reshape(len(windows), -1), own.reshape(len(windows), -1)

    def occupy(self, blocks: Sequence[int]) -> None:
        self._request.occupy(blocks)

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        return self.forward([HeadWindow([0] * rows, context, blocks, np.zeros((rows, self.width), np.float32))])


def _check_ports(model: ov.Model, file: Path) -> None:
    """Raises UnsupportedModel for a head that reads anything but what `INPUTS` names, or puts out no states."""
    inputs = {port.get_any_name(): port.get_partial_shape() for port in model.inputs}
    outputs = {name for port in model.outputs for name in port.get_names()}
    problems = [f"does not read {name}" for name in sorted(INPUTS - {*inputs})]
    problems += [f"reads {name}" for name in sorted({*inputs} - INPUTS)]
    problems += [] if STATES in outputs else [f"does not put out {STATES}"]
    if "position_ids" in inputs and inputs["position_ids"].rank != TOKENS_RANK:
        problems.append("reads several positions a token")
    if problems:
        raise UnsupportedModel(
            f"{file} {' and '.join(problems)}, unlike the heads of multi-token prediction that can be run: choose one "
            "that optimum-intel exported for Qwen3.5, or export a head with `outrider export --head`."
        )


def _take_rows(model: ov.Model) -> int:
    """Let the input HIDDEN_STATES be rows, [rows, width], as paged attention has them. Returns the width."""
    states = next(node for node in model.get_parameters() if HIDDEN_STATES in node.output(0).get_names())
    width = states.get_partial_shape()[-1].get_length()
    readers = list(states.output(0).get_target_inputs())
    states.set_partial_shape(ov.PartialShape([-1, width]))
    row = ops.unsqueeze(states, ops.constant(1, dtype=np.int64)).output(0)  # a sequence of one row each, as they come
    for reader in readers:
        reader.replace_source_output(row)
    model.validate_nodes_and_infer_types()
    return int(width)
