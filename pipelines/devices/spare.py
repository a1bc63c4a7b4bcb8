"""Spare: a pair on the CPU, which is loaded if its device fails."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..engine.backend import Backend
from ..model.pair import Pair
from ..speculation.runtime import Runtime
from ..text.tokenizer import Tokenizer
from .devices import CPU


class Spare:
    """Loads a pair on the CPU if its device fails. It knows nothing of the pipeline, whose memory is freed at once when
    nobody uses it any more.

    runtime: that of the device, which is let go when the CPU's takes its place; None where OpenVINO GenAI decodes.
    """

    def __init__(
        self,
        pair: Pair,
        tokenizer: Tokenizer,
        cache_tokens: int | None,
        exact: bool | None,
        reference: Path | None,
        runtime: Runtime | None,
    ) -> None:
        self._load = partial(Runtime, pair, tokenizer, CPU, CPU, cache_tokens, exact, reference, {})
        self.runtime = runtime

    def __call__(self) -> Backend:
        """The engine that takes over. Raises what Runtime raises."""
        runtime = self._load()
        runtime.measure()
        self.runtime = runtime
        return runtime.engine
