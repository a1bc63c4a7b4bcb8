"""The sampling settings of the page, and the generation options that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outrider.pipelines import AUTO, InvalidOption


@dataclass(frozen=True, slots=True)
class Settings:
    """What the controls show, and the system prompt.

    A top-k of 0 is no limit, a temperature of 0 takes the likeliest token every time, 0 draft tokens as many as pay.
    """

    mode: str = AUTO
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = 0  # None when the field was emptied
    max_new_tokens: int = 512
    draft_tokens: int = 0
    system: str = ""

    def options(self) -> dict[str, Any]:
        """The same as options of `LLMPipeline.stream`. Raises InvalidOption."""
        if self.seed is None:
            raise InvalidOption("The seed is empty: give a whole number from 0 up.")
        return {
            "mode": self.mode,
            "do_sample": self.temperature > 0,
            "temperature": float(self.temperature),
            "top_k": int(self.top_k) or None,
            "top_p": float(self.top_p),
            "min_p": float(self.min_p),
            "repetition_penalty": float(self.repetition_penalty),
            "rng_seed": int(self.seed),
            "max_new_tokens": int(self.max_new_tokens),
            "num_assistant_tokens": int(self.draft_tokens) or None,
        }
