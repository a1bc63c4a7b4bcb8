"""Drafters with known acceptance probabilities, and an acceptance model that believes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress, takewhile

from outrider.pipelines.speculation.acceptance import GREEDY, AcceptanceModel, Conditions, Features
from outrider.pipelines.speculation.cost import CostModel
from outrider.pipelines.speculation.draft_cost import DraftCost
from outrider.pipelines.speculation.drafters.base import Proposal, Score


class Clock:
    """Seconds that pass only where somebody says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Odds(AcceptanceModel):
    """Believes what a proposal says of itself, and learns nothing."""

    def probability(self, features: Features, conditions: Conditions = GREEDY) -> float:
        if features.kind in ("agreed", "doubted", "mended"):
            return {"agreed": 0.97, "doubted": 0.2, "mended": 0.8}[features.kind]
        return features.values[0]

    def observe(self, features: Features, accepted: bool, conditions: Conditions = GREEDY) -> None:
        pass


class OddsDrafter:
    """Proposes tokens with given acceptance probabilities to each request."""

    def __init__(self, name: str, odds: dict) -> None:
        self.name = name
        self.odds = odds
        self.num_taken = 0

    def propose(self, request, ahead=()) -> Iterator[Proposal]:
        for estimate in self.odds[request][len(ahead) :]:
            yield self._proposal(estimate)

    def release(self, request) -> None:
        self.odds.pop(request, None)

    def _proposal(self, estimate: float) -> Proposal:
        self.num_taken += 1
        return Proposal(7, self.name, Features(self.name, (estimate,)))


class OddsModel(OddsDrafter):
    """The same as a draft model: one token per pass for each of several requests.

    A pass takes `slowness` times what `cost` was told that it takes, by the `clock` of the model itself.
    """

    reads_ahead = True
    depth: int | None = None
    num_passes = 0
    clock_s = 0.0
    slowness = 1.0
    cost: CostModel | None = None

    def clock(self) -> float:
        return self.clock_s

    def generate(self, wanted) -> list[Proposal | None]:
        self._run(wanted)
        left = [self.odds[request][len(ahead) :] for request, ahead in wanted]
        return [self._proposal(estimates[0]) if estimates else None for estimates in left]

    def score(self, wanted) -> list[list[Score] | None]:
        self._run(wanted)
        return [self._scores(self.odds[request][: len(ahead) + 1]) for request, ahead in wanted]

    def _scores(self, estimates) -> list[Score]:
        """Below even odds it would write another token."""
        made = [self._proposal(e)._replace(token=7 if e > 0.5 else 5) for e in estimates]
        return [Score(proposal, 4 * e - 2) for proposal, e in zip(made, estimates, strict=True)]

    def num_behind(self, request, ahead=()) -> int:
        return 1

    def _run(self, wanted) -> None:
        self.num_passes += 1
        if self.cost is not None:
            quick = replace(self.cost)  # which has learnt nothing
            took_ms = quick.of_draft(self.name).pass_ms(len(wanted))
            took_ms += sum(quick.of_draft(self.name).feeding_ms(self.num_behind(*each) - 1) for each in wanted)
            self.clock_s += self.slowness * took_ms / 1e3


class Behind(OddsModel):
    """One that has so many tokens to be fed before its first proposal."""

    def __init__(self, name: str, odds: dict, missed: int) -> None:
        super().__init__(name, odds)
        self.missed = missed

    def _run(self, wanted) -> None:
        super()._run(wanted)
        self.missed = 0

    def num_behind(self, request, ahead=()) -> int:
        return 1 + self.missed


class Remembering(OddsModel):
    """One that knows what it has read, as a draft model does: of each text all but `missed` tokens at first, and then
    also the drafts that it wrote or scored. A draft for a request takes `begin_ms` more. `passed` tells what was kept.
    """

    def __init__(self, name: str, odds: dict, missed: int = 0, depth: int | None = None) -> None:
        super().__init__(name, odds)
        self.depth = depth
        self.num_unread: defaultdict = defaultdict(lambda: 1 + missed)
        self.ahead: defaultdict = defaultdict(list)  # tokens of drafts that it has read
        self.begun: set = set()

    def generate(self, wanted) -> list[Proposal | None]:
        has_room = [self.depth is None or len(ahead) < self.depth for _, ahead in wanted]
        proposals = iter(super().generate(list(compress(wanted, has_room))) if any(has_room) else ())
        return [next(proposals) if each else None for each in has_room]

    def num_behind(self, request, ahead=()) -> int:
        known = [] if self.num_unread[request] else self.ahead[request]
        return max(1, self.num_unread[request] + len(ahead) - num_same(known, ahead))

    def passed(self, request, kept: list[int]) -> None:
        """End a pass of the target."""
        if not self.num_unread[request]:
            self.num_unread[request] -= self._num_read_of(request, kept)
        self.num_unread[request] += len(kept)
        self.ahead[request] = []
        self.begun.discard(request)

    def _num_read_of(self, request, kept: list[int]) -> int:
        """How many of these tokens need not be read any more."""
        return num_same(self.ahead[request], kept)

    def _run(self, wanted) -> None:
        self.num_passes += 1
        assert self.cost is not None
        known = replace(self.cost).of_draft(self.name)  # which has learnt nothing
        begin_ms = known.begin_ms * sum(request not in self.begun for request, _ in wanted)
        self.clock_s += (begin_ms + self._took_ms(known, wanted)) / 1e3
        for request, ahead in wanted:
            self.num_unread[request], self.ahead[request] = 0, list(ahead)
            self.begun.add(request)

    def _took_ms(self, known: DraftCost, wanted) -> float:
        """In one pass."""
        return known.pass_ms(len(wanted)) + sum(known.feeding_ms(self.num_behind(*each) - 1) for each in wanted)


class OddsHead(Remembering):
    """The same as a head: each token of a draft takes it a pass, and it reads what was accepted again, with the
    target's states. Being handed those takes `reading_ms` of Python's time."""

    reads_ahead = False

    def __init__(
        self, odds: dict, clock: Clock, missed: int = 0, depth: int | None = None, reading_ms: float = 0.0
    ) -> None:
        super().__init__("head", odds, missed, depth)
        self.python, self.reading_ms = clock, reading_ms

    def read(self, request, start, states) -> None:
        self.python.now += self.reading_ms / 1e3

    def _num_read_of(self, request, kept) -> int:
        return 0

    def _took_ms(self, known, wanted) -> float:
        """In as many passes as the longest takes; the texts are read in the first."""
        of_texts = [max(0, self.num_unread[request] - 1) for request, _ in wanted]
        nums_passes = [self.num_behind(*each) - number for each, number in zip(wanted, of_texts, strict=True)]
        nums_sharing = [sum(number > i for number in nums_passes) for i in range(max(nums_passes))]
        return sum(map(known.feeding_ms, of_texts)) + sum(map(known.pass_ms, nums_sharing))


def num_same(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first tokens are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


class Slow(OddsDrafter):
    """Takes so long to be asked, in milliseconds, and for each token that it offers beyond the first; `num_asked` and
    `num_further` count that."""

    def __init__(self, name: str, odds: dict, clock: Clock, asking_ms: float, offering_ms: float = 0.0) -> None:
        super().__init__(name, odds)
        self.clock, self.asking_ms, self.offering_ms = clock, asking_ms, offering_ms
        self.num_asked = self.num_further = 0

    def propose(self, request, ahead=()):
        self.clock.now += self.asking_ms / 1e3
        self.num_asked += 1
        for i, proposal in enumerate(super().propose(request, ahead)):
            if i:
                self.clock.now += self.offering_ms / 1e3
                self.num_further += 1
            yield proposal


class Pondered(OddsModel):
    """Takes so long to be considered, in milliseconds, whatever comes of it; `num_considered` counts that."""

    def __init__(self, odds: dict, clock: Clock, considering_ms: float) -> None:
        super().__init__("draft_model", odds)
        self.python, self.considering_ms, self.num_considered = clock, considering_ms, 0

    def num_behind(self, request, ahead=()) -> int:
        if not ahead:
            self.python.now += self.considering_ms / 1e3
            self.num_considered += 1
        return 1


