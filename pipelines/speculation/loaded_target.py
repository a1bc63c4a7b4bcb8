"""LoadedTarget: the target of a pair on its device, with its cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..devices.devices import CPU, NPU, failing_to_load
from ..devices.gpu_model import GpuPagedModel
from ..devices.npu_model import NpuModel
from ..engine.backend import Room
from ..engine.block_pool import BlockPool
from ..errors import InvalidOption
from ..model.heads.head_kind import tapped_layers
from ..model.paged_request import BLOCK_SIZE
from ..model.pair import Pair, num_layers
from ..model.profile import keep, kept, one_at_a_time, profile_path
from ..model.target import Target
from ..model.tuning import FAIR, Compilation, load_target

CACHE_TOKENS = 16384  # by default
COMPILATION = ".compilation-8.json"  # numbered, so that a better search replaces the result of an earlier one


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """The target, and how it was compiled.

    pool: the blocks of its cache.
    room: what fits into them.
    path: the file that remembers how it is compiled.
    """

    target: Target
    compilation: Compilation
    pool: BlockPool
    room: Room
    path: Path

    @classmethod
    def on(
        cls,
        device: str,
        pair: Pair,
        cache_tokens: int | None,
        exact: bool | None,
        properties: Mapping[str, Any],
    ) -> LoadedTarget:
        """Load it on a device. Arguments and errors are those of `LLMPipeline`."""
        path = profile_path(pair, device, properties, exact).with_suffix(COMPILATION)
        with one_at_a_time(path, Compilation):
            if device == NPU:
                return cls._on_npu(pair, cache_tokens, exact, properties, path)
            num_blocks = -(-(cache_tokens or CACHE_TOKENS) // BLOCK_SIZE)
            load = cls._on_cpu if device == CPU else cls._on_gpu
            target, compilation = load(device, pair, num_blocks, exact, properties, path)
        pool = BlockPool(num_blocks, BLOCK_SIZE)
        return cls(target, compilation, pool, Room.of(pool), path)

    @staticmethod
    def _on_cpu(
        device: str, pair: Pair, num_blocks: int, exact: bool | None, properties: Mapping[str, Any], path: Path
    ) -> tuple[Target, Compilation]:
        taps = () if pair.head is None else tapped_layers(pair.head, num_layers(pair.target))
        return load_target(pair.target, num_blocks, properties, exact, pair.max_context, path, taps, pair.skipping)

    @classmethod
    def _on_npu(
        cls, pair: Pair, cache_tokens: int | None, exact: bool | None, properties: Mapping[str, Any], path: Path
    ) -> LoadedTarget:
        """The cache holds one sequence, so the pool has a single block of that length. Exactness costs nothing, since
        every pass has the same number of rows."""
        if cache_tokens is not None:
            raise InvalidOption(
                f"cache_tokens={cache_tokens} is not possible on an NPU: give MAX_PROMPT_LEN and MIN_RESPONSE_LEN."
            )
        target = NpuModel(pair.target, properties)
        compilation = kept(path, Compilation)
        if compilation is None:
            with failing_to_load(NPU):
                is_exact = exact is not False and target.is_exact()
            compilation = Compilation(is_exact, target.precision, rows=target.rows)
            keep(path, compilation)
        room = Room(target.num_tokens, "a larger MAX_PROMPT_LEN or MIN_RESPONSE_LEN", target.num_prompt_tokens)
        return cls(target, compilation, BlockPool(1, target.num_tokens), room, path)

    @staticmethod
    def _on_gpu(
        device: str, pair: Pair, num_blocks: int, exact: bool | None, properties: Mapping[str, Any], path: Path
    ) -> tuple[Target, Compilation]:
        target = GpuPagedModel(pair.target, num_blocks, device, properties)
        compilation = kept(path, Compilation)
        if compilation is None:
            price = None
            if exact is not False:
                with failing_to_load(device):
                    price = target.keep_exact(pair.max_context, math.inf if exact else FAIR)
            compilation = Compilation(target.exact, target.precision, rows=target.rows, price=price)
            keep(path, compilation)
        target.keep_to_rows(compilation.exact)
        return target, compilation
