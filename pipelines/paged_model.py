"""PagedModel: an IR in paged-attention form, and one pass over windows of several sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset15 as ops
from openvino._offline_transformations import paged_attention_transformation

from .errors import BrokenPair, InvalidOption, UnsupportedModel

BLOCK_SIZE = 32  # token slots of a key-value block in OpenVINO's CPU plugin
PREFILL_ROWS = 512  # tokens of one sequence in one pass, at most

FED_INPUTS = {
    "input_ids", "position_ids", "past_lens", "subsequence_begins", "block_indices", "block_indices_begins",
    "max_context_len", "rows",
}  # fmt: skip

PROPERTIES = {
    "PERFORMANCE_HINT": "LATENCY",
    # bf16, the default where the processor has it, would make the text depend on the processor and cost accuracy.
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "u8",
    # By channel, the default, requantizes the keys of accepted tokens when a rejected one joins their block.
    "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
}

# A draft model changes no text, so it may compute as the processor likes best.
DRAFT_PROPERTIES = {"INFERENCE_PRECISION_HINT": "dynamic", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 128}


@dataclass(frozen=True, slots=True)
class Window:
    """One sequence's new tokens in a pass.

    `tokens` go to the positions from `start` on, in the slots of `blocks`; logits are wanted for the last `num_rows`.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_rows: int = 1


class PagedModel:
    """Compiles `folder`/openvino_model.xml with a cache of `num_blocks` blocks. Not safe for concurrent calls.

    Raises BrokenPair where the IR cannot be read, UnsupportedModel where it has no paged-attention form or needs inputs
    other than tokens, InvalidOption for a property that the device does not take.
    """

    def __init__(self, folder: Path, num_blocks: int, properties: Mapping[str, Any] | None = None) -> None:
        mode = (properties or {}).get("KEY_CACHE_QUANT_MODE", "BY_TOKEN")
        if mode != "BY_TOKEN":
            raise InvalidOption(
                f"KEY_CACHE_QUANT_MODE={mode} is not possible: a rejected token would change accepted keys, "
                "and the same seed would give another text. Leave it out."
            )
        core = ov.Core()
        model = _paged(core, folder)
        try:
            compiled = core.compile_model(model, "CPU", {**PROPERTIES, **(properties or {})})
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise InvalidOption(f"OpenVINO cannot compile {folder} with {dict(properties or {})}: {reason}") from error
        self.num_blocks = num_blocks
        self.num_threads: int = compiled.get_property("INFERENCE_NUM_THREADS")
        self.weight_bytes = (folder / "openvino_model.bin").stat().st_size
        self.cache_bytes = 0
        self._request = compiled.create_infer_request()
        for port in compiled.inputs:
            name = port.get_any_name()
            if _is_cache(name):
                shape = [num_blocks, *(dim.get_length() for dim in list(port.partial_shape)[1:])]
                if shape[2] != BLOCK_SIZE:
                    raise UnsupportedModel(f"{folder} uses key-value blocks of {shape[2]} tokens, not {BLOCK_SIZE}.")
                cache = ov.Tensor(port.element_type, ov.Shape(shape))
                self._request.set_tensor(name, cache)
                self.cache_bytes += cache.byte_size
        self.vocabulary_size: int = compiled.output(0).partial_shape[-1].get_length()

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        """Run all windows in one pass, ragged, without padding; logits [num_rows, vocabulary] for each window."""
        counts = np.array([len(w.tokens) for w in windows])
        starts = np.array([w.start for w in windows])
        begins = np.concatenate([[0], np.cumsum(counts)])
        used = [w.blocks[: -(-(w.start + len(w.tokens)) // BLOCK_SIZE)] for w in windows]
        wanted = [np.arange(end - w.num_rows, end) for w, end in zip(windows, begins[1:], strict=True)]
        inputs = {
            "input_ids": np.concatenate([np.asarray(w.tokens, np.int64) for w in windows]),
            "position_ids": np.concatenate([np.arange(w.start, w.start + len(w.tokens)) for w in windows]),
            "past_lens": starts.astype(np.int32),
            "subsequence_begins": begins.astype(np.int32),
            "block_indices": np.concatenate([np.asarray(u, np.int32) for u in used]),
            "block_indices_begins": np.cumsum([0, *map(len, used)]).astype(np.int32),
            "max_context_len": np.asarray((starts + counts).max(), np.int32),
            "rows": np.concatenate(wanted),
        }
        for name, value in inputs.items():
            self._request.set_tensor(name, ov.Tensor(value))
        self._request.infer()
        logits = self._request.get_output_tensor(0).data.reshape(-1, self.vocabulary_size)
        return np.split(logits.copy(), np.cumsum([w.num_rows for w in windows])[:-1])

    def prefill(self, tokens: Sequence[int], num_cached: int, blocks: Sequence[int]) -> NDArray[np.float32]:
        """Feed what the cache lacks of one sequence and return the logits [vocabulary] that follow its last token."""
        last = len(tokens) - 1
        for start in range(min(num_cached, last), last + 1, PREFILL_ROWS):
            (logits,) = self.forward([Window(tokens[start : start + PREFILL_ROWS], start, blocks)])
        return logits[-1]


def _paged(core: ov.Core, folder: Path) -> ov.Model:
    path = folder / "openvino_model.xml"
    if not path.is_file() or not path.with_suffix(".bin").is_file():
        raise BrokenPair(f"{path} or its .bin file is missing: export the pair again.")
    try:
        model = core.read_model(path)
    except RuntimeError as error:
        raise BrokenPair(f"{path} cannot be read: export the pair again. ({error})") from error
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise UnsupportedModel(
            f"{folder} has no paged-attention form, so rejected tokens cannot be taken back: choose a decoder language "
            f"model with key-value cache, exported for text generation. ({error})"
        ) from error
    _gather_rows(model, folder)
    unknown = {port.get_any_name() for port in model.inputs if not _is_cache(port.get_any_name())} - FED_INPUTS
    if unknown:
        raise UnsupportedModel(f"{folder} needs inputs other than tokens: {', '.join(sorted(unknown))}.")
    return model


def _is_cache(name: str) -> bool:
    return name.startswith(("key_cache.", "value_cache."))


def _gather_rows(model: ov.Model, folder: Path) -> None:
    """Project only the wanted rows on the vocabulary: a prompt needs the logits of its last token alone."""
    result = next((r for r in model.get_results() if "logits" in r.input_value(0).get_names()), None)
    node = None if result is None else result.input_value(0).get_node()
    while node is not None and node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node() if node.get_input_size() else None
    if node is None:
        raise UnsupportedModel(f"{folder} has no output named logits that a matrix product yields.")
    rows = ops.parameter([-1], ov.Type.i64, name="rows")
    rows.output(0).set_names({"rows"})
    gathered = ops.gather(node.input_value(0), rows, ops.constant(0, dtype=np.int64))
    node.input(0).replace_source_output(gathered.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
