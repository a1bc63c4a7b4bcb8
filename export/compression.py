"""Compression: how a model's weights are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outrider.pipelines.errors import InvalidOption

WeightFormat = Literal["int8", "int4", "fp16"]

# Measured on a trained model of 5.5M weights, two cores with AVX-512 and no AMX, against fp16: int8 diverges by 0.001
# nats a token and int4 by 0.05 to 0.10, while a pass over 1 to 32 tokens takes both the same time (fp16 1.1 to 1.8
# times as long). So int8 for models this small; larger ones, bound by memory, gain from int4. With or without zero
# points made no difference beyond noise in time, and little in divergence (int8 0.0012 and 0.0013, int4 in groups of
# 128 0.090 and 0.102, of 32 0.047 and 0.051).
DEFAULTS: dict[str, dict[str, Any]] = {
    "int8": {"symmetric": True},
    "int4": {"symmetric": True, "group_size": 128, "ratio": 1.0},
    "fp16": {},
}
BYTES_PER_WEIGHT = {"fp16": 2.0, "int8": 1.05, "int4": 0.8}  # upper bounds, with scales, and int8 embeddings for int4


@dataclass(frozen=True, slots=True)
class Compression:
    """How the weights of one model are stored. An option left at None takes the default of its format.

    symmetric: whether zero is stored exactly, without zero points; for int8 and int4.
    group_size: weights per scale, for int4 only; -1 is one scale per row. A matrix whose row length it does not divide
        gets the largest power of two that does, at least 32, or else int8.
    ratio: the share of the weights stored in int4, the rest in int8; for int4 only.

    Raises InvalidOption for a value out of range and for an option that the format does not have.
    """

    weights: WeightFormat = "int8"
    symmetric: bool | None = None
    group_size: int | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.weights not in DEFAULTS:
            raise InvalidOption(f"Weight format {self.weights!r} does not exist: choose {', '.join(DEFAULTS)}.")
        for name, value in self._given().items():
            if name not in DEFAULTS[self.weights]:
                raise InvalidOption(f"{name}={value} has no meaning for {self.weights} weights: leave it out.")
        if self.group_size is not None and self.group_size < 1 and self.group_size != -1:
            raise InvalidOption(f"group_size={self.group_size} must be positive, or -1 for one scale per row.")
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise InvalidOption(f"ratio={self.ratio} must be above 0 and at most 1.")

    @property
    def settings(self) -> dict[str, Any]:
        """The value of each option of the format."""
        return DEFAULTS[self.weights] | self._given()

    def _given(self) -> dict[str, Any]:
        options = {"symmetric": self.symmetric, "group_size": self.group_size, "ratio": self.ratio}
        return {name: value for name, value in options.items() if value is not None}


def compressions(formats: Sequence[WeightFormat], **options: Any) -> list[Compression]:
    """One Compression for each of `formats`, with the `options` that apply to it.

    Raises InvalidOption for an option that applies to none of them.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if not any(name in DEFAULTS.get(weights, {}) for weights in formats):
            raise InvalidOption(f"{name}={value} has no meaning for {' and '.join(formats)} weights: leave it out.")
    return [
        Compression(weights, **{name: value for name, value in given.items() if name in DEFAULTS.get(weights, {})})
        for weights in formats
    ]
