"""DraftingModel: a draft model or a head with its cache, and its passes outside of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..engine.block_pool import BlockPool
from ..errors import DeviceFailed
from ..model.timing import Run
from .drafters.base import ModelDrafter


class Model(Protocol):
    """What the model must provide; `PagedModel`, `NpuModel`, `GpuPagedModel` and every `HeadModel` do."""

    weight_bytes: int

    @property
    def cache_bytes(self) -> int: ...

    def occupy(self, blocks: Sequence[int]) -> None: ...

    def blind_pass(self, rows: int, context: int, blocks: Sequence[int]) -> object: ...


class DraftingFailed(Exception):
    """The device of a model that drafts failed while passes were tried: `failed` is the model."""

    def __init__(self, failed: DraftingModel, error: DeviceFailed) -> None:
        super().__init__(str(error))
        self.failed = failed


@dataclass(frozen=True, slots=True)
class DraftingModel:
    """A model that drafts, the drafter that runs it, and the blocks of its cache."""

    drafter: ModelDrafter
    model: Model
    pool: BlockPool

    @property
    def name(self) -> str:
        return self.drafter.name

    def occupy(self, blocks: Sequence[int]) -> None:
        """Fill blocks with anything, so that passes over them take a realistic time. Raises DraftingFailed."""
        try:
            self.model.occupy(blocks)
        except DeviceFailed as error:
            raise DraftingFailed(self, error) from error

    def passes(self, blocks: Sequence[int]) -> Run:
        """Passes in these blocks, whatever they hold, in order to time them. They raise DraftingFailed."""

        def run(rows: int, context: int) -> None:
            try:
                self.model.blind_pass(rows, context, blocks)
            except DeviceFailed as error:
                raise DraftingFailed(self, error) from error

        return run
