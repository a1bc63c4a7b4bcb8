"""How far both lanes of a race are."""

from __future__ import annotations

from dataclasses import dataclass

from .conversation import Turn
from .prefill_progress import PrefillProgress


@dataclass(frozen=True, slots=True)
class RaceState:
    """The turn of each lane, as far as it is written.

    prefill: progress of the prompt in the running lane, until the first token of its answer.
    disturbed: whether other work of this process ran during the race, so that its times cannot be compared.
    """

    plain: Turn
    drafted: Turn
    prefill: PrefillProgress | None = None
    disturbed: bool = False
