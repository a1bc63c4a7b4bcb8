"""Rate: what a millisecond is worth, in tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .cost import CostModel
from .draft import Batch, Draft
from .draft_model_policy import LONGEST_GENERATED, DraftModelPolicy
from .overhead import Overhead

REMEMBER = 0.9  # weight of the passes so far


class Step(NamedTuple):
    """One more token of a draft: the probability that it is reached and accepted, and its price."""

    draft: Draft
    probability: float
    price_ms: float


@dataclass(frozen=True, slots=True)
class BarePass:
    """The pass without planned drafts: its requests, the expected number of tokens, its time, and how much longer it
    takes because of the size of the last pass."""

    drafts: Sequence[Draft]
    tokens: float
    time_ms: float
    standing_ms: float

    @property
    def rate(self) -> float:
        return self.tokens / self.time_ms


def plain_and_bare_ms(cost: CostModel, drafts: Sequence[Draft], overhead: Overhead) -> tuple[float, float]:
    """The time of a pass without drafts, and of one with drafts of a fixed length only, Python's time included."""
    python_ms = len(drafts) * overhead.request.value
    plain_ms = cost.pass_ms([(1, draft.context) for draft in drafts]) + python_ms
    if all(draft.is_bounded for draft in drafts):
        return plain_ms, plain_ms
    windows = [(1 if draft.is_bounded else draft.rows, draft.context) for draft in drafts]
    return plain_ms, cost.pass_ms(windows) + python_ms


@dataclass(slots=True)
class Pace:
    """The recent rate of all requests of a pass together, exponentially weighted."""

    tokens: float = 0.0
    time_ms: float = 0.0

    def add(self, tokens: int, time_ms: float) -> None:
        self.tokens = REMEMBER * self.tokens + tokens
        self.time_ms = REMEMBER * self.time_ms + time_ms

    @property
    def rate(self) -> float:
        """Tokens per millisecond; 0 before the first pass."""
        return self.tokens / self.time_ms if self.time_ms else 0.0


def highest_rate(
    batch: Batch,
    by_policy: Mapping[DraftModelPolicy, Sequence[Draft]],
    bare: BarePass,
    steps: Sequence[Step],
    rows: int,
) -> float:
    """The highest rate that this pass can be expected to have, with the text drafters or with a model.

    rows: of the pass without planned drafts.
    """
    bare_ms, best = bare.time_ms + bare.standing_ms, bare.rate
    tokens, time_ms = bare.tokens, bare_ms
    for step in steps:
        tokens, time_ms = tokens + step.probability, time_ms + step.price_ms
        best = max(best, tokens / time_ms)
    for policy, sharing in by_policy.items():
        tokens, time_ms, probability, num_rows = bare.tokens, bare_ms, 1.0, rows
        if not sharing:
            continue
        expected = [policy.expected.of(kind) for kind in {draft.kind for draft in sharing}]
        first, following = map(min, zip(*expected, strict=True))
        own = policy.cost(batch.cost)
        token_ms = own.pass_ms(len(sharing)) + len(sharing) * batch.python_row_ms
        time_ms += len(sharing) * own.beginning_ms()
        for window in range(1, 1 + LONGEST_GENERATED):
            probability *= first if window == 1 else following
            if len(sharing) * probability < best * token_ms:  # nor will what follows pay, which is less likely
                break
            tokens += len(sharing) * probability
            time_ms += token_ms
            for draft in sharing:
                time_ms += batch.cost.row_ms(num_rows, window, draft.context, batch.last_rows)
                num_rows += 1
            best = max(best, tokens / time_ms)
    return best
