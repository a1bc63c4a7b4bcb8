"""Backend: what runs the requests of a pipeline."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from .sequence import Sequence


class Backend(Protocol):
    """`Engine` on the CPU, `GenaiEngine` on every other device.

    Whoever waits for a sequence calls `step` until it is finished; calls from several threads take turns, and each
    serves everybody. So what a sequence has come to is read under the `lock`.
    """

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def add(self, sequence: Sequence) -> None:
        """Queue a request. Raises where it could not even run alone."""

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence at once and free what it holds; a finished one is left as it is."""

    def step(self) -> None:
        """Bring the running sequences on: new tokens, the end or an error."""
