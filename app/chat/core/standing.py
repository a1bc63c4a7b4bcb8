"""Standing: how far both lanes of a race are."""

from __future__ import annotations

from dataclasses import dataclass

from .conversation import Turn
from .reading import Reading


@dataclass(frozen=True, slots=True)
class Standing:
    """reading: how far the prompt is read in the lane that runs, until that one writes.

    disturbed: whether something else of this program ran beside the race, which makes its times unfair.
    """

    plain: Turn
    drafted: Turn
    reading: Reading | None = None
    disturbed: bool = False
