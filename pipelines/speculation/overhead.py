"""Overhead: the time of a pass outside the models."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

REMEMBERED = 31  # times whose median counts
FEWEST = 3  # times before a value is used: the first of a process are far too long
RELAX = 0.95  # factor on a price in each pass in which it was too high to be paid


@dataclass(slots=True)
class Usual:
    """A typical time: the median of the latest ones, which bursts of noise do not move, or the least of them while
    there are few. Before that it is the value given, or zero."""

    value: float = 0.0
    is_doubted: bool = False
    _seen: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)  # the same, ascending

    @property
    def is_known(self) -> bool:
        return len(self._seen) >= FEWEST

    def add(self, value: float) -> None:
        value = max(0.0, value)
        if self.is_doubted:
            self._seen, self._sorted = deque([value] * REMEMBERED), [value] * REMEMBERED
            self.is_doubted = False
        self._seen.append(value)
        insort(self._sorted, value)
        if len(self._seen) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._seen.popleft())]
        if self.is_known:
            self.value = self._sorted[len(self._sorted) // 2 if len(self._sorted) > 2 * FEWEST else 0]

    def doubt(self) -> None:
        """Lower a value so high that it keeps new times from being seen; the next time replaces all earlier ones."""
        self.value *= RELAX
        self.is_doubted = True


@dataclass(slots=True)
class Overhead:
    """Python's times in milliseconds.

    request: for each request of a pass without drafts.
    asking: added by asking a request's text drafters and planning, whether or not they offer a token.
    offering: added by each further token that they offer, whether or not it is drafted.
    considering: added by then considering a model for a request, whether or not it is asked.
    row: added by each drafted row.
    reading: added by handing a request's results of a pass to the drafters that draft from them.
    """

    request: Usual = field(default_factory=Usual)
    asking: Usual = field(default_factory=Usual)
    offering: Usual = field(default_factory=Usual)
    considering: Usual = field(default_factory=Usual)
    row: Usual = field(default_factory=Usual)
    reading: Usual = field(default_factory=Usual)

    def observe_asking(self, num_requests: int, num_further: int, took_ms: float) -> None:
        """Learn from asking the text drafters of some requests, which offered `num_further` tokens beyond the first of
        each."""
        if self.asking.is_doubted or not num_further:
            self.asking.add((took_ms - num_further * self.offering.value) / num_requests)
        elif self.asking.is_known:
            self.offering.add((took_ms - num_requests * self.asking.value) / num_further)
        else:
            self.asking.add(took_ms / (num_requests + num_further))

    def observe_rest(self, num_requests: int, num_drafted: int, took_ms: float) -> None:
        """Learn from a pass with `num_drafted` tokens that took `took_ms` outside the models and asking."""
        if not num_drafted:
            self.request.add(took_ms / num_requests)
        elif self.request.is_known:
            self.row.add((took_ms - num_requests * self.request.value) / num_drafted)
