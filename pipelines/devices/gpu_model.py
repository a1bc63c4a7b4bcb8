"""GpuPagedModel: a model with paged attention on an Intel GPU, with its key-value cache in the device's memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ..errors import InvalidOption, UnsupportedDevice, UnsupportedModel, reason_of
from ..model.exactness import CHECKED_TOKENS, is_exact
from ..model.paged_model import read_paged_model, require_keys_by_token
from ..model.paged_request import BLOCK_SIZE, is_cache, pass_inputs
from ..model.processor import PRECISION
from ..model.target import ANY_ROWS, Rows, Window
from .devices import device_names, failing

DECODING_ROWS = 8  # a tile of OpenVINO's kernels for matrix products
EXACT_ROWS = 16  # prompts are then read this many tokens at a time
SETTLED_S = 5.0  # until kernels that are compiled in the background are in place
PRICED = 10  # passes of each size that are timed
PROMPT, ANSWER = 512, 128  # tokens that exactness is priced for

PROPERTIES = {
    "PERFORMANCE_HINT": "LATENCY",
    "KV_CACHE_PRECISION": "f16",
    # By channel, rows that are written to one block at the same time would each quantize all of it.
    "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
}


class GpuPagedModel:
    """Compiles `folder`/openvino_model.xml for an Intel GPU, with a cache of `num_blocks` blocks of BLOCK_SIZE tokens.
    Not safe for concurrent calls.

    A pass of windows of up to `decoding_rows` rows is computed row by row: each is fed as a sequence of one token, over
    the blocks of its window. OpenVINO writes the keys and values of all sequences before any of them attends, so the
    rows of a window see one another, and one row per sequence has an attention kernel that is several times as fast as
    the one for a few (openvino#38153). Such a pass is padded to a multiple of `decoding_rows`, so that the device uses
    the same kernels, unless it has a single row, for which there are faster ones. The padding writes its keys and
    values to a spare block. Other passes, such as those over prompts, are fed in whole windows.

    exact: whether the logits are bitwise the same however tokens are split into passes. It is False at first;
        `keep_exact` tries to make it True, and `keep_to_rows` applies what that found out.
    device: "GPU", or "GPU.1" and so on where there are several.
    properties: OpenVINO's properties for that device.

    Raises BrokenPair if the IR cannot be read, UnsupportedModel if it cannot be converted to paged attention or needs
    inputs other than tokens, UnsupportedDevice if the device cannot be used or cannot compile or hold the model, and
    InvalidOption for a property that it refuses.
    """

    def __init__(
        self,
        folder: Path,
        num_blocks: int,
        device: str = "GPU",
        properties: Mapping[str, Any] | None = None,
        decoding_rows: int = DECODING_ROWS,
    ) -> None:
        given = dict(properties or {})
        require_keys_by_token(given)
        core = ov.Core()
        model = read_paged_model(core, folder)
        self._device, self._remote = device, _remote_context(core, device)
        compiled = _compiled(core, model, folder, device, given)
        self._request = compiled.create_infer_request()
        self._cache_ports = [port for port in compiled.inputs if is_cache(port.get_any_name())]
        values = next(port for port in self._cache_ports if port.get_any_name().startswith("value_cache."))
        self._block_size: int = values.partial_shape[2].get_length()  # of the device: 16 tokens as a rule
        if BLOCK_SIZE % self._block_size:
            raise UnsupportedModel(
                f"On {device}, {folder} uses key-value blocks of {self._block_size} tokens, and {BLOCK_SIZE} is no "
                "multiple of that: leave out the properties, or use another device."
            )
        self.num_threads = 0
        self.precision: str = compiled.get_property(PRECISION).get_type_name()
        self.vocabulary_size: int = compiled.output(0).partial_shape[-1].get_length()
        self.weight_bytes = (folder / "openvino_model.bin").stat().st_size
        self.num_taken_over = 0
        self._fewest_rows = decoding_rows
        self.keep_to_rows(exact=False)
        self.resize(num_blocks)

    def keep_to_rows(self, exact: bool) -> None:
        """Set whether the model is `exact`: then prompts, too, are computed row by row, and every pass has the same
        number of rows, at least EXACT_ROWS."""
        self.exact = exact
        self._decoding_rows, self.rows = self._fewest_rows, ANY_ROWS
        if exact:
            self._decoding_rows = num_rows = max(self._fewest_rows, EXACT_ROWS)
            self.rows = Rows(num_rows, num_rows, num_rows)

    def keep_exact(self, max_context: int = CHECKED_TOKENS, limit: float = math.inf) -> float | None:
        """Become `exact` if the device gives the same bits in passes of one size, with texts of up to `max_context`
        tokens, and an answer of ANSWER tokens to a prompt of PROMPT takes at most `limit` times as long with them.
        Returns how many times it takes, or None if the bits differ. Overwrites the cache. Raises DeviceFailed.

        OpenVINO puts better kernels in place when it has compiled them in the background, so passes are run for
        SETTLED_S seconds before the first that counts, and the bits have to agree twice.
        """
        num_blocks, until = self.num_blocks, time.perf_counter() + SETTLED_S
        self.keep_to_rows(exact=True)
        is_exact(self, max_context)
        while time.perf_counter() < until:
            is_exact(self, max_context)
        price = self._price() if all(is_exact(self, max_context) for _ in range(2)) else None
        self.keep_to_rows(exact=price is not None and price <= limit)
        self.resize(num_blocks)
        return price

    def _price(self) -> float:
        """Time of an answer in passes of EXACT_ROWS rows, which also read its prompt, over that in passes of one row
        after a prompt that is read at once. The passes are timed in turns."""
        sizes = ((True, 1), (False, 1), (False, PROMPT))
        blocks = range(min(PROMPT // BLOCK_SIZE, self.num_blocks))
        num_read = len(blocks) * BLOCK_SIZE
        times = dict.fromkeys(sizes, math.inf)
        for _ in range(PRICED):
            for exact, rows in sizes:
                self.keep_to_rows(exact)
                self.blind_pass(min(rows, num_read), 0, blocks)  # the first pass of another size takes longer
                began = time.perf_counter()
                self.blind_pass(min(rows, num_read), 0, blocks)
                times[exact, rows] = min(times[exact, rows], time.perf_counter() - began)
        exact_s = (PROMPT / EXACT_ROWS + ANSWER) * times[True, 1]
        return max(1.0, exact_s / (PROMPT / num_read * times[False, PROMPT] + ANSWER * times[False, 1]))

    def resize(self, num_blocks: int) -> None:
        """Replace the cache by another of `num_blocks` blocks, whose content is arbitrary. Raises UnsupportedDevice."""
        self.num_blocks = num_blocks
        self._caches: list[ov.RemoteTensor] = []
        for port in self._cache_ports:
            shape = [self._spare_block + 1, *(dim.get_length() for dim in list(port.partial_shape)[1:])]
            try:
                cache = self._remote.create_tensor(port.element_type, ov.Shape(shape), {})
            except RuntimeError as error:
                raise UnsupportedDevice(
                    f"{self._device} has no room for a cache of {num_blocks * BLOCK_SIZE} tokens ({reason_of(error)}): "
                    "load the pair with fewer cache_tokens, or use another device."
                ) from error
            self._request.set_tensor(port.get_any_name(), cache)
            self._caches.append(cache)

    @property
    def cache_bytes(self) -> int:
        return sum(cache.get_byte_size() for cache in self._caches)

    def forward(self, windows: Sequence[Window]) -> list[NDArray[np.float32]]:
        """Run all windows in one pass, and return logits float32 [num_rows, vocabulary] for each of them.

        The logits are views of the request's own memory, which the next pass overwrites. Raises ValueError if the model
        is exact and the pass has more than `rows.most` rows, and DeviceFailed.
        """
        wanted_rows = [w.num_rows for w in windows]
        num_rows = sum(len(w.tokens) for w in windows)
        if self.exact and num_rows > self.rows.most:
            raise ValueError(f"A pass of {num_rows} rows is too long: feed at most {self.rows.most}.")
        fed = [self._on_device(window) for window in windows if window.blocks]  # it is padded row by row below
        if all(len(w.tokens) <= self._decoding_rows for w in fed):
            fed = [*chain.from_iterable(map(_rows_of, fed))]
            fed += [Window.filling(1)] * (self._filled(num_rows) - len(fed))
        inputs, context = pass_inputs(fed, [len(w.tokens) for w in fed], self._block_size, self._spare_block)
        wanted = inputs["rows"]
        inputs["rows"] = wanted + wanted[-1:] * (self._filled(len(wanted)) - len(wanted))
        arrays = {name: np.array(values) for name, values in inputs.items()}
        with failing(self._device):
            outputs = self._request.infer({**arrays, "max_context_len": np.int32(context)}, share_outputs=True)
        return np.split(outputs[0].reshape(-1, self.vocabulary_size), [*accumulate(wanted_rows)])[:-1]

    def hidden_states(self) -> list[NDArray[np.float32]]:
        """An empty list: heads draft only for targets on the CPU."""
        return []

    def occupy(self, blocks: Sequence[int]) -> None:
        """Read the same text into every block, so that passes over them compute with ordinary numbers."""
        size = min(BLOCK_SIZE, self.rows.most)
        together = self.rows.most // size
        for start in range(0, BLOCK_SIZE, size):
            text = range(start, min(start + size, BLOCK_SIZE))
            for i in range(0, len(blocks), together):
                self.forward([Window(text, start, [block]) for block in blocks[i : i + together]])

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object:
        """A pass of `rows` rows after `context` tokens, whatever the blocks hold, in order to time it."""
        return self.forward([Window([0] * rows, context, blocks, rows)])

    def _filled(self, num_rows: int) -> int:
        """The number of rows with padding."""
        return num_rows if num_rows == self.rows.fewest else -(-num_rows // self._decoding_rows) * self._decoding_rows

    @property
    def _spare_block(self) -> int:
        """The device's block after the last one of the cache."""
        return self.num_blocks * (BLOCK_SIZE // self._block_size)

    def _on_device(self, window: Window) -> Window:
        """The window with the device's smaller blocks."""
        parts = range(BLOCK_SIZE // self._block_size)
        blocks = [block * len(parts) + part for block in window.blocks for part in parts]
        return Window(window.tokens, window.start, blocks, window.num_rows)


def _rows_of(window: Window) -> Iterator[Window]:
    """A window for each row."""
    first_wanted = len(window.tokens) - window.num_rows
    for i, token in enumerate(window.tokens):
        yield Window([token], window.start + i, window.blocks, int(i >= first_wanted))


def _remote_context(core: ov.Core, device: str) -> ov.RemoteContext:
    try:
        return core.get_default_context(device)
    except RuntimeError as error:
        raise UnsupportedDevice(
            f"OpenVINO cannot hold a cache on {device} ({reason_of(error)}): install the device's driver, or choose "
            f"another device ({', '.join(device_names())})."
        ) from error


def _compiled(
    core: ov.Core, model: ov.Model, folder: Path, device: str, properties: Mapping[str, Any]
) -> ov.CompiledModel:
    """Raises InvalidOption for a property that the error is about, and UnsupportedDevice."""
    try:
        return core.compile_model(model, device, {**PROPERTIES, **properties})
    except RuntimeError as error:
        refused = [name for name in properties if name in str(error)]
        if refused:
            raise InvalidOption(
                f"{device} refuses {', '.join(f'{name}={properties[name]!r}' for name in refused)} "
                f"({reason_of(error)}): correct the property, or leave it out."
            ) from error
        raise UnsupportedDevice(
            f"OpenVINO could not compile {folder} for {device} ({reason_of(error)}): update the device's driver, check "
            "the properties, or use another device."
        ) from error
