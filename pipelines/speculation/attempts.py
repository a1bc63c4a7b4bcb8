"""Attempts: whether to try again what has not been worth its price lately."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

HOPE = 0.01  # least gain to expect of an attempt, as a share of a plain pass: with none, there would never be another
FIRST_HOPE = 0.5  # the gain to expect of the first attempt
FORGET = 0.15  # weight of the newest attempt in the expected gain of the next
LONGEST_PAUSE = 16  # passes
TRIED_EVERY = 8  # answers, see `Trials`


@dataclass(slots=True)
class Attempts:
    """While attempts gain less than they cost, the pauses between them grow, up to LONGEST_PAUSE passes.

    gain: what the next attempt is expected to save, in plain passes.
    """

    gain: float = FIRST_HOPE
    _pause: float = 0  # passes between attempts
    _waited: int = 0

    @property
    def is_due(self) -> bool:
        """Whether to try in this pass."""
        return self._waited >= self._pause

    @property
    def is_given_up(self) -> bool:
        """Whether attempts are as rare as they may get."""
        return self._pause >= LONGEST_PAUSE

    @property
    def is_hopeless(self) -> bool:
        """Whether attempts seem to be worth nothing."""
        return self.gain <= HOPE

    @property
    def is_stopped(self) -> bool:
        """Whether there will be no more attempts."""
        return self._pause == math.inf

    def wait(self) -> None:
        """Count a pass."""
        self._waited += 1

    def put_off(self, passes: int, price_ms: float, plain_ms: float) -> None:
        """Begin with a pause if the first attempt is not expected to be worth its price."""
        if not self._is_worth(price_ms, plain_ms):
            self._pause = passes

    def stop(self) -> None:
        """Make no more attempts."""
        self._pause = math.inf

    def made(self, gain_ms: float, price_ms: float, plain_ms: float) -> None:
        """Count an attempt: its expected gain and its price, where a plain pass takes `plain_ms`."""
        self.gain += FORGET * (gain_ms / plain_ms - self.gain)
        self._waited = 0
        self._pause = 0 if self._is_worth(price_ms, plain_ms) else min(2 * self._pause + 1, LONGEST_PAUSE)

    def _is_worth(self, price_ms: float, plain_ms: float) -> bool:
        return max(self.gain, HOPE) * plain_ms >= price_ms


@dataclass(slots=True)
class Trials:
    """Where attempts have hardly been worth anything for a kind of answer, only one answer in TRIED_EVERY of that kind
    is a trial, for which they are still made, to see whether that has changed."""

    _num_answers: defaultdict[Hashable, int] = field(default_factory=lambda: defaultdict(int))

    def has_next(self, kind: Hashable) -> bool:
        """Whether the next answer of a kind is a trial."""
        self._num_answers[kind] += 1
        return self._num_answers[kind] % TRIED_EVERY == 0
