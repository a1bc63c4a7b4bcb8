"""What every way of drafting has in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ...engine.request import Request
from ..acceptance import Features

EARLIER_TURN = "earlier_turn"  # the source of what is copied from there, whoever finds it


@dataclass(frozen=True, slots=True)
class Proposal:
    """A token that may come next, who says so (or EARLIER_TURN), and what speaks for it."""

    token: int
    source: str
    features: Features


def source_of(drafter: str, position: int, request: Request) -> str:
    """Whom a token is owed to that a drafter copies from a position of a request."""
    return EARLIER_TURN if position < request.num_earlier_tokens else drafter


class Drafter(Protocol):
    """Proposes; never decides. Nothing it does can change the tokens of an answer."""

    name: str

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        """What may follow `request.tokens` and `ahead`, token by token, each on the condition that those before it
        are right. It ends where nothing suggests itself. Work is done only for proposals that are taken.
        """
        ...

    def release(self, request: Request) -> None:
        """Forget a finished request, also one never seen."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """What a draft model thinks of a place in a draft: its own proposal, and its log-odds for the token there."""

    proposal: Proposal
    log_odds: float


Wanted: TypeAlias = Sequence[tuple[Request, Sequence[int]]]  # requests, and the tokens ahead of each


class ModelDrafter(Drafter, Protocol):
    """A drafter that runs a model, whose passes cost time and can serve several requests."""

    def generate(self, wanted: Wanted) -> list[Proposal | None]:
        """The next proposal behind each request's tokens and those ahead of them, all in one pass."""
        ...

    def score(self, wanted: Wanted) -> list[list[Score] | None]:
        """The same for each token ahead, and behind the last: what it thinks of it, if those before are right."""
        ...

    def num_behind(self, request: Request, ahead: Sequence[int] = ()) -> int:
        """Tokens that the model must be fed before it can propose the one behind `request.tokens` and `ahead`."""
        ...


@dataclass(frozen=True, slots=True)
class ModeDrafters:
    """Who drafts in a mode: those who read the texts, and behind them a model."""

    texts: tuple[Drafter, ...] = ()
    model: ModelDrafter | None = None

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        return self.texts if self.model is None else (*self.texts, self.model)
