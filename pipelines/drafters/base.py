"""What every way of drafting has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..calibration import Evidence
from ..sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed to follow a sequence, and for each the name of who proposed it."""

    tokens: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposal:
    """A token that may come next, who says so, and what speaks for it."""

    token: int
    source: str
    evidence: Evidence


class Drafter(Protocol):
    """Proposes; never decides. Nothing it does can change the tokens of an answer."""

    name: str

    def propose(self, sequence: Sequence, limit: int) -> Draft:
        """At most `limit` tokens that may follow `sequence.tokens`; fewer or none where nothing suggests itself."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Forget a finished sequence, also one never seen."""
        ...
