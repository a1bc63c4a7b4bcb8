"""Settings of distillations."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distillation:
    """Settings of a distillation. Raises ValueError for a value out of range.

    variation: weight of total variation in the loss; the rest is forward KL.
    temperatures: sampling temperatures of the target, one prompt each in turn; 0 is greedy.
    epochs: how often each generated text is used.
    learning_rate: the peak for AdamW.
    matrix_rate: the peak for Muon, which then trains the matrices of the layers; None: AdamW trains them too.
    group_size: weights are rounded to int4 in groups of this size while they are trained (see `rounding`); -1: one
        group a row; None: they are not.
    """

    variation: float = 0.5
    temperatures: tuple[float, ...] = (0.0, 1.0)
    epochs: int = 2
    batch_size: int = 16
    max_new_tokens: int = 256
    learning_rate: float = 1e-3
    matrix_rate: float | None = None
    warm_up: float = 0.02
    seed: int = 0
    group_size: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.variation <= 1:
            raise ValueError(f"variation is a share in 0..1, not {self.variation}")
        if not self.temperatures or not all(0 <= temperature < math.inf for temperature in self.temperatures):
            raise ValueError(f"temperatures must be one or more numbers from 0 up, not {self.temperatures}")
        for name in ("epochs", "batch_size", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "matrix_rate"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, not {rate}")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must be a number of 64 bits, not {self.seed}")
        if self.group_size is not None and self.group_size < 1 and self.group_size != -1:
            raise ValueError(f"group_size must be positive, or -1 for one scale per row, not {self.group_size}")


@dataclass(frozen=True, slots=True)
class Unrolling:
    """How many drafts in a row a head learns from each row; draft k weighs `decay**k`. Raises ValueError.

    places: at most this many rows of an answer, drawn anew each time, since rows of one answer teach much the same;
        None: all.
    """

    steps: int = 4
    decay: float = 0.8
    places: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "places"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, not {self.decay}")


STANDARD = Distillation()
FOUR_STEPS = Unrolling()
