"""Grammar: what the form of the answer leaves no choice about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from ..calibration import Evidence
from ..sequence import Sequence
from .base import Proposal

# Weights of the feature below, bias first, to begin with. The first token is all that is allowed; those behind it could
# only be others if the model's tokens for a text depended on where one begins to read it.
PRIORS = {"grammar": (6.0, 0.0)}


class Grammar:
    """The tokens that the grammar of a structured answer forces, in the model's usual way to write them.

    Punctuation and names of a JSON object cost no reading of texts and no model. Known as jump-forward or fast-forward
    decoding; here they are verified like any others.
    """

    name = "grammar"

    def propose(self, sequence: Sequence, ahead: SequenceOf[int] = ()) -> Iterator[Proposal]:
        if sequence.constraint is None:
            return
        for depth, token in enumerate(sequence.constraint.forced([*sequence.new_tokens, *ahead])):
            yield Proposal(token, self.name, Evidence(self.name, (math.log2(1 + depth) / 4,)))

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept of a sequence."""
