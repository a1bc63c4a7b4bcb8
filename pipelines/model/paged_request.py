"""PagedRequest: runs a compiled model with paged attention, over a key-value cache of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import psutil

from ..errors import InvalidOption, UnsupportedModel
from .target import Window

BLOCK_SIZE = 32  # token slots of a key-value block in OpenVINO's CPU plugin
ANYTHING = (58, 63)  # bytes that make numbers of ordinary size in any type, including the cache's scales


class PagedRequest:
    """An inference request of `compiled`, the model in `folder`, with a cache of `num_blocks` blocks. Not safe for
    concurrent calls.

    Raises UnsupportedModel for a model with blocks of another size than BLOCK_SIZE, and InvalidOption for a cache that
    is larger than the memory of the machine.
    """

    def __init__(self, compiled: ov.CompiledModel, num_blocks: int, folder: Path) -> None:
        self._caches: list[ov.Tensor] = []
        self._fed: dict[str, ov.Tensor] = {}
        self._request = compiled.create_infer_request()
        for port in compiled.inputs:
            name = port.get_any_name()
            if not is_cache(name):
                smallest = [1 if size.is_dynamic else size.get_length() for size in port.partial_shape]
                self._fed[name] = fed = ov.Tensor(port.element_type, ov.Shape(smallest))
                self._request.set_tensor(name, fed)
            elif (size := port.partial_shape[2].get_length()) != BLOCK_SIZE:
                raise UnsupportedModel(f"{folder} uses key-value blocks of {size} tokens, not {BLOCK_SIZE}.")
        self._cache_ports = [port for port in compiled.inputs if is_cache(port.get_any_name())]
        self.resize(num_blocks)

    def resize(self, num_blocks: int) -> None:
        """Replace the cache by an empty one of `num_blocks` blocks."""
        self.num_blocks = num_blocks
        self._caches.clear()
        shapes = [  # one block is spare
            [num_blocks + 1, *(dim.get_length() for dim in list(port.partial_shape)[1:])] for port in self._cache_ports
        ]
        _check_size(num_blocks, sum(map(_num_bytes, self._cache_ports, shapes)))
        for port, shape in zip(self._cache_ports, shapes, strict=True):
            cache = ov.Tensor(port.element_type, ov.Shape(shape))
            self._request.set_tensor(port.get_any_name(), cache)
            self._caches.append(cache)

    @property
    def spare_block(self) -> int:
        """A block that belongs to no sequence."""
        return self.num_blocks

    @property
    def cache_bytes(self) -> int:
        return sum(cache.byte_size for cache in self._caches)

    def infer(self, inputs: Mapping[str, Any]) -> Sequence[Any]:
        """Run one pass; its outputs are arrays in memory that the next pass overwrites.

        inputs: numbers, sequences or arrays, by name; what the model does not read is left out.
        """
        for name, fed in self._fed.items():
            array = np.asarray(inputs[name], fed.data.dtype)
            fed.shape = array.shape
            fed.data[...] = array
        outputs = self._request.infer(share_outputs=True)
        return [outputs[i] for i in range(len(outputs))]

    def occupy(self, blocks: Sequence[int]) -> None:
        """Fill blocks with fixed pseudo-random numbers, so that passes over them take a realistic time.

        Memory that was never written is mapped to a single page of zeros, which stays in the processor's cache.
        """
        rng = np.random.default_rng(0)
        for cache in self._caches:
            held = cache.data.reshape(cache.shape[0], -1).view(np.uint8)
            held[blocks] = rng.integers(*ANYTHING, (len(blocks), held.shape[1]), np.uint8)


def is_cache(name: str) -> bool:
    return name.startswith(("key_cache.", "value_cache."))


def pass_inputs(
    windows: Sequence[Window], attending: Sequence[int], block_size: int, spare_block: int
) -> tuple[dict[str, list[int]], int]:
    """What a paged model is fed for a pass, except `max_context_len`, which is the second result.

    attending: how many rows of each window enter the attention.
    spare_block: takes what has no room in a window's blocks, such as windows that only pad a pass.
    """
    starts, lengths = [w.start for w in windows], [len(w.tokens) for w in windows]
    ends = [start + rows for start, rows in zip(starts, attending, strict=True)]
    numbers = [-(-end // block_size) for end in ends]
    used = [[*w.blocks, *[spare_block] * n][:n] for w, n in zip(windows, numbers, strict=True)]
    unwanted = [end - w.num_rows for w, end in zip(windows, accumulate(lengths), strict=True)]
    inputs = {
        "input_ids": [*chain.from_iterable(w.tokens for w in windows)],
        "position_ids": ranges(starts, lengths),
        "past_lens": starts,
        "subsequence_begins": [*accumulate(attending, initial=0)],
        "block_indices": [*chain.from_iterable(used)],
        "block_indices_begins": [*accumulate(map(len, used), initial=0)],
        "rows": ranges(unwanted, [w.num_rows for w in windows]),
    }
    return inputs, max(ends)


def ranges(begins: Iterable[int], lengths: Iterable[int]) -> list[int]:
    """For each of `begins`, the numbers from it on, as many as its length in `lengths`."""
    return [i for begin, length in zip(begins, lengths, strict=False) for i in range(begin, begin + length)]


def _num_bytes(port: ov.Output, shape: Sequence[int]) -> int:
    return math.prod(shape) * port.element_type.bitwidth // 8


def _check_size(num_blocks: int, num_bytes: int) -> None:
    memory = psutil.virtual_memory().total
    if num_bytes > memory:
        raise InvalidOption(
            f"A key-value cache of {num_blocks * BLOCK_SIZE:,} tokens takes {num_bytes / 1e9:,.0f} GB, and this "
            f"machine has {memory / 1e9:.0f} GB of memory: give a smaller cache_tokens."
        )
