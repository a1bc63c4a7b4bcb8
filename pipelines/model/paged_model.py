"""PagedModel: a model with paged attention, and forward passes over several sequences at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from ..errors import BrokenPair, InvalidOption, UnsupportedModel, reason_of
from .graph import gather_wanted_rows, gathered, index_inputs
from .paged_request import BLOCK_SIZE, PagedRequest, is_cache, pass_inputs, ranges
from .pair import MODEL
from .partial_sums import longest_inner, split_products
from .processor import PRECISION, limited_properties
from .projections import join_projections
from .taps import add_taps, keep_states_in_f32
from .target import ANY_ROWS, Window

ATTENDING_ROWS = 2  # least rows per sequence in exact attention: a single row goes through another kernel
UNFILLED_ROWS, FILLED_ROWS = 64, 32  # longer passes that need not be exact are padded to a multiple (see `forward`)

FED_INPUTS = {
    "input_ids", "position_ids", "past_lens", "subsequence_begins", "block_indices", "block_indices_begins",
    "max_context_len", "rows", "attending", "attended",
}  # fmt: skip

PROPERTIES: dict[str, Any] = {
    "PERFORMANCE_HINT": "LATENCY",
    PRECISION: "f32",  # not bf16, with which some int4 models are not exact
    "KV_CACHE_PRECISION": "u8",
    # The default, by channel, requantizes the keys of accepted tokens whenever a rejected one enters their block.
    "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
    # Kernels are kept for the latest shapes only. With the default of 5,000, memory grows for as long as shapes change.
    "CPU_RUNTIME_CACHE_CAPACITY": 200,
}


class Request(Protocol):
    """Runs passes: a `PagedRequest`, or several of them one after the other (see `SplitModel`)."""

    @property
    def spare_block(self) -> int: ...

    @property
    def cache_bytes(self) -> int: ...

    def resize(self, num_blocks: int) -> None: ...

    def infer(self, inputs: Mapping[str, Any]) -> Sequence[Any]: ...

    def occupy(self, blocks: Sequence[int]) -> None: ...


class PagedModel:
    """Compiles `folder`/openvino_model.xml with a cache of `num_blocks` blocks. Not safe for concurrent calls.

    With `exact`, a token's logits are bitwise the same however tokens are split into passes and whichever other
    sequences share them, as long as every pass keeps to `rows` (see `exactness.find_rows`). `forward` pads passes that
    are too short; the padding writes its keys and values to a spare block. Attention over a single row of a sequence
    would differ as well, so a window of one token is repeated inside the attention, where a second row costs almost
    nothing. Its keys and values land in the slot after the token, which the next pass overwrites.

    longest: matrix products with a longer inner dimension are summed in parts (see `split_products`); None: never.
    taps: layers whose outputs `hidden_states` gives, for a head that drafts.
    precision: the type that the device computes in, such as "f32" or "bf16".

    Raises BrokenPair if the IR cannot be read, UnsupportedModel if it cannot be converted to paged attention or needs
    inputs other than tokens, and InvalidOption for a property that the device refuses.
    """

    def __init__(
        self,
        folder: Path,
        num_blocks: int,
        properties: Mapping[str, Any] | None = None,
        exact: bool = True,
        longest: int | None = None,
        taps: Sequence[int] = (),
    ) -> None:
        require_keys_by_token(properties or {})
        core = ov.Core()
        model = read_paged_model(core, folder)
        join_projections(model)
        if taps:
            add_taps(model, taps, folder)
        if exact:
            _gather_in_attention(model)
        self.longest_inner = longest_inner(model)
        parts = self._parts_of(model, folder)
        if longest is not None:  # not before: the layers of a model are told apart by its sums
            for part in parts:
                split_products(part, longest)
        if exact and {**PROPERTIES, **(properties or {})}[PRECISION] != "f32":
            keep_states_in_f32(parts[-1])
        compiled = [compiled_on_cpu(core, part, folder, properties) for part in parts]
        self.exact = exact
        self.rows = ANY_ROWS
        self.num_threads: int = compiled[0].get_property("INFERENCE_NUM_THREADS")
        self.precision: str = compiled[0].get_property(PRECISION).get_type_name()
        self.weight_bytes = (folder / "openvino_model.bin").stat().st_size
        self.num_taken_over = 0
        self._request = self._request_of([PagedRequest(each, num_blocks, folder) for each in compiled])
        self.vocabulary_size: int = compiled[-1].output(0).partial_shape[-1].get_length()
        self.num_blocks = num_blocks
        self._has_taps = bool(taps)
        self._hidden_states: list[NDArray[np.float32]] = []

    def resize(self, num_blocks: int) -> None:
        """Replace the cache by an empty one of `num_blocks` blocks."""
        self.num_blocks = num_blocks
        self._request.resize(num_blocks)

    @property
    def cache_bytes(self) -> int:
        return self._request.cache_bytes

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        """Run all windows in one pass, and return logits float32 [num_rows, vocabulary] for each of them.

        The logits are views of the model's own memory, which the next pass overwrites. Short passes are padded to
        `rows.fewest`. Long passes of a model that is not exact, such as a draft model, are padded to a multiple of
        FILLED_ROWS, because OpenVINO compiles kernels for every new number of rows, and with a small model that takes
        longer than the extra rows. Raises ValueError if the model is exact and the pass has more than `rows.most` rows.
        """
        inputs, lengths = self._inputs(windows)
        return self._results(windows, lengths, self._request.infer(inputs))

    def _inputs(self, windows: Sequence[Window]) -> tuple[dict[str, Any], list[int]]:
        """What the model is fed for a pass, and the rows of each window, including the one that pads the pass."""
        num_rows = sum(len(w.tokens) for w in windows)
        if self.exact and num_rows > self.rows.most:
            raise ValueError(f"A pass of {num_rows} rows is too long: feed at most {self.rows.most}.")
        num_filling = max(0, self.rows.fewest - num_rows)
        if not self.exact and num_rows > UNFILLED_ROWS:
            num_filling = -num_rows % FILLED_ROWS
        if num_filling:
            windows = [*windows, Window.filling(num_filling)]
        lengths = [len(w.tokens) for w in windows]
        attending = [max(length, ATTENDING_ROWS) if self.exact else length for length in lengths]
        inputs, context = pass_inputs(windows, attending, BLOCK_SIZE, self._request.spare_block)
        inputs["rows"] += inputs["rows"][-1:] * (self.rows.fewest_projected - len(inputs["rows"]))
        if self.exact:
            repeated = zip(accumulate(lengths, initial=0), lengths, attending, strict=False)
            inputs["attending"] = [begin + min(i, n - 1) for begin, n, rows in repeated for i in range(rows)]
            inputs["attended"] = ranges(inputs["subsequence_begins"], lengths)
        return {**inputs, "max_context_len": context}, lengths

    def _results(
        self, windows: Sequence[Window], lengths: Sequence[int], outputs: Sequence[NDArray[np.float32]]
    ) -> list[NDArray[np.float32]]:
        """The logits of each window; its hidden states are kept."""
        if self._has_taps:
            self._hidden_states = np.split(outputs[1], [*accumulate(lengths)])[: len(windows)]
        wanted_rows = [w.num_rows for w in windows]
        return np.split(outputs[0].reshape(-1, self.vocabulary_size), [*accumulate(wanted_rows)])[:-1]

    def hidden_states(self) -> list[NDArray[np.float32]]:
        """The outputs of the tapped layers in the last pass, concatenated: float32 [rows, taps * width] for each
        window, in the model's own memory, which the next pass overwrites. Empty without taps."""
        return self._hidden_states

    def _parts_of(self, model: ov.Model, folder: Path) -> list[ov.Model]:
        """The models to compile, which run one after the other."""
        return [model]

    def _request_of(self, parts: Sequence[PagedRequest]) -> Request:
        (whole,) = parts
        return whole

    def occupy(self, blocks: Sequence[int]) -> None:
        """Fill blocks with anything, so that passes over them take a realistic time."""
        self._request.occupy(blocks)

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        """A pass of `rows` rows after `context` tokens, whatever the blocks hold, in order to time it."""
        return self.forward([Window([0] * rows, context, blocks, rows)])


def compiled_on_cpu(
    core: ov.Core, model: ov.Model, folder: Path, properties: Mapping[str, Any] | None
) -> ov.CompiledModel:
    """The model, of `folder`, compiled with PROPERTIES and those given. Raises InvalidOption."""
    try:
        return core.compile_model(model, "CPU", {**PROPERTIES, **(properties or {}), **limited_properties()})
    except RuntimeError as error:
        raise InvalidOption(
            f"OpenVINO cannot compile {folder} with {dict(properties or {})}: {reason_of(error)}"
        ) from error


def read_model(core: ov.Core, folder: Path, name: str = MODEL) -> ov.Model:
    """The model in the file `name` of a folder. Raises BrokenPair."""
    path = folder / name
    if not path.is_file() or not path.with_suffix(".bin").is_file():
        raise BrokenPair(f"{path} or its .bin file is missing: export the pair again.")
    try:
        return core.read_model(path)
    except RuntimeError as error:
        raise BrokenPair(f"{path} cannot be read ({reason_of(error)}): export the pair again.") from error


def read_paged_model(core: ov.Core, folder: Path) -> ov.Model:
    """The model in `folder` with paged attention, and logits for `rows` only. Raises BrokenPair and
    UnsupportedModel."""
    model = read_model(core, folder)
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise UnsupportedModel(
            f"{folder} has no paged-attention form ({reason_of(error)}), so rejected tokens cannot be taken back: "
            "choose a decoder language model with key-value cache, exported for text generation."
        ) from error
    gather_wanted_rows(model, folder)
    unknown = {port.get_any_name() for port in model.inputs if not is_cache(port.get_any_name())} - FED_INPUTS
    if unknown:
        raise UnsupportedModel(f"{folder} needs inputs other than tokens: {', '.join(sorted(unknown))}.")
    return model


def require_keys_by_token(properties: Mapping[str, Any]) -> None:
    """Raises InvalidOption if keys are to be quantized in another way."""
    mode = properties.get("KEY_CACHE_QUANT_MODE", "BY_TOKEN")
    if mode != "BY_TOKEN":
        raise InvalidOption(
            f"KEY_CACHE_QUANT_MODE={mode} is not possible: a rejected token would change accepted keys, "
            "and the same seed would give another text. Leave it out."
        )


def _gather_in_attention(model: ov.Model) -> None:
    """Select the rows that enter each attention layer (`attending`) and those that leave it (`attended`), so that a row
    can be repeated inside the attention without being repeated in the matrix products."""
    attending, attended = index_inputs(model, "attending", "attended")
    for node in model.get_ordered_ops():
        if node.get_type_name() == "PagedAttentionExtension":
            for states in (node.input(i) for i in range(3)):  # queries, keys, values
                states.replace_source_output(gathered(states.get_source_output(), attending))
            readers = node.output(0).get_target_inputs()
            left = gathered(node.output(0), attended)
            for reader in readers:
                reader.replace_source_output(left)
    model.validate_nodes_and_infer_types()
