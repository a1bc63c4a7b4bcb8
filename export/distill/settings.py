"""Settings of distillations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distillation:
    """Settings of a distillation. Raises ValueError for a value out of range.

    variation: weight of total variation in the loss; the rest is forward KL.
    temperatures: sampling temperatures of the target, one batch each in turn; 0 is greedy.
    epochs: how often each generated text is used.
    """

    variation: float = 0.5
    temperatures: tuple[float, ...] = (0.0, 1.0)
    epochs: int = 2
    batch_size: int = 16
    max_new_tokens: int = 256
    learning_rate: float = 1e-3
    warm_up: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.variation <= 1:
            raise ValueError(f"variation is a share in 0..1, not {self.variation}")
        if not self.temperatures or min(self.temperatures) < 0:
            raise ValueError(f"temperatures must be one or more numbers from 0 up, not {self.temperatures}")
        for name in ("epochs", "batch_size", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, not {self.learning_rate}")


@dataclass(frozen=True, slots=True)
class Unrolling:
    """How many drafts in a row a head learns from each row; draft k weighs `decay**k`. Raises ValueError."""

    steps: int = 4
    decay: float = 0.8

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, not {self.decay}")


STANDARD = Distillation()
FOUR_STEPS = Unrolling()
