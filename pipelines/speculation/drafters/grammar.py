"""Grammar: drafts tokens that the grammar of a structured answer forces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.request import Request
from ..acceptance import Features
from .base import Proposal

PRIORS = {"grammar": (8.0,)}  # initial log-odds: nothing else can follow


class Grammar:
    """The tokens that the grammar of a structured answer forces, such as names and punctuation of a JSON object.

    Where only one text can follow, only the model's usual way to write it is allowed, so these tokens are certain. They
    cost neither a search nor a model, only their rows: a kind of fast-forward decoding that is verified like any other.
    """

    name = "grammar"

    def propose(self, request: Request, ahead: Sequence[int] = ()) -> Iterator[Proposal]:
        answer = [*request.new_tokens, *ahead]
        while request.constraint is not None and (token := request.constraint.forced(answer)) is not None:
            yield Proposal(token, self.name, Features(self.name))
            answer.append(token)

    def release(self, request: Request) -> None:
        """Nothing is kept of a request."""
