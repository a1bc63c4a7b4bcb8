"""Drafter: what all ways of drafting have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...engine.request import Request
from ...engine.sampling import Distribution
from ..acceptance import Features

EARLIER_TURN = "earlier_turn"  # the source of tokens copied from an earlier turn, by any drafter


class Proposal(NamedTuple):
    """A proposed token, the drafter that proposed it (or EARLIER_TURN), and the features from which its acceptance is
    predicted.

    drawn_from: the distribution that it was drawn from, for a request whose acceptance rule needs that. Such a proposal
        must be verified: if it could be left out because of its token, what is left would follow another distribution.
    """

    token: int
    source: str
    features: Features
    drawn_from: Distribution | None = None


class Drafter(Protocol):
    """Proposes; never decides. Nothing it does can change the tokens of an answer, unless that was asked for with a
    lossy acceptance rule."""

    name: str

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        """Proposals for the tokens after `request.tokens` and `ahead`, lazily; each assumes that those before it are
        accepted. Ends where there is nothing to propose."""
        ...

    def release(self, request: Request) -> None:
        """Forget a finished request, which need not have been seen before."""
        ...


@runtime_checkable
class IndexingDrafter(Drafter, Protocol):
    """A drafter that drafts from an index of the request's text. `propose` indexes what is missing."""

    def num_unindexed(self, request: Request) -> int:
        """Tokens of the request that are not indexed yet."""
        ...

    def index(self, request: Request) -> None:
        """Index these tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """A model's result at one position of a draft: its own proposal, and its log-odds for the drafted token."""

    proposal: Proposal
    log_odds: float


Wanted: TypeAlias = Sequence[tuple[Request, Sequence[int]]]  # requests, and the tokens ahead of each


class ModelDrafter(Drafter, Protocol):
    """A drafter that runs a model, whose passes cost time and can serve several requests.

    reads_ahead: whether it reads several tokens ahead of a request in one pass; otherwise each takes a pass.
    depth: tokens of a draft that it can generate or score at most; None: any number.
    """

    reads_ahead: bool
    depth: int | None

    def generate(self, wanted: Wanted) -> list[Proposal | None]:
        """The next proposal after each request's tokens and those ahead of them, all in one pass; None where there is
        none."""
        ...

    def score(self, wanted: Wanted) -> list[list[Score] | None]:
        """For each request a score for every token ahead, and one for the position after the last, as far as the
        model's depth; None where there is none."""
        ...

    def num_behind(self, request: Request, ahead: Sequence[int] = ()) -> int:
        """Tokens that the model must be fed before it can propose the one after `request.tokens` and `ahead`."""
        ...


def one_by_one(drafter: ModelDrafter, request: Request, ahead: Sequence[int]) -> Iterator[Proposal]:
    """What a model proposes after a request and the tokens ahead, with a pass for each token."""
    ahead = list(ahead)
    while (proposal := drafter.generate([(request, ahead)])[0]) is not None:
        yield proposal
        ahead.append(proposal.token)


def common_length(left: list[int], right: list[int]) -> int:
    """The length of the common prefix; by bisection, since lists compare much faster than a loop over them."""
    same, different = 0, min(len(left), len(right)) + 1
    while different - same > 1:
        middle = (same + different) // 2
        if left[same:middle] == right[same:middle]:
            same = middle
        else:
            different = middle
    return same


@runtime_checkable
class StatesReader(Protocol):
    """A drafter that drafts from the target's hidden states."""

    def read(self, request: Request, start: int, states: NDArray[np.float32]) -> None:
        """Take the target's hidden states of a request's tokens from position `start` on, float32 [tokens, taps *
        width], in memory that the next pass overwrites. All of them belong to accepted tokens; states taken earlier
        from `start` on are void."""
        ...


@runtime_checkable
class LogitsReader(Protocol):
    """A drafter that drafts from the target's logits."""

    def read_logits(self, tokens: Sequence[int], logits: NDArray[np.float32]) -> None:
        """Take the target's logits of a pass, float32 [tokens, vocabulary], in memory that the next pass overwrites.
        `tokens` are the tokens that the rows follow, rejected ones included."""
        ...


@dataclass(frozen=True, slots=True)
class ModeDrafters:
    """The drafters of a mode: first those that copy from texts, then one of the models.

    drafters: all of them.
    """

    texts: tuple[Drafter, ...] = ()
    models: tuple[ModelDrafter, ...] = ()
    drafters: tuple[Drafter, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "drafters", (*self.texts, *self.models))
