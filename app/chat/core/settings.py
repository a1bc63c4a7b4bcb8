"""The settings of the page, and the generation options that they stand for."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from outrider.pipelines import ACCEPTANCES, AUTO, EXACT, MODES, InvalidOption

from .values import LARGEST_WHOLE, Number, Whole, sound

NEW_SEEDS = 2**31  # random seeds are below this, which every device and number field accepts
LARGEST_SEED = 2**53 - 1  # from a number field: a browser would round larger ones, and answer with another seed


def _known(mode: str) -> str:
    if mode not in MODES:
        raise ValueError(f"give one of {', '.join(MODES)}")
    return mode


def _rule(acceptance: str) -> str:
    if acceptance not in ACCEPTANCES:
        raise ValueError(f"give one of {', '.join(ACCEPTANCES)}")
    return acceptance


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the controls, and the system prompt.

    top_k: 0 for no limit. temperature: 0 for greedy decoding. draft_tokens: 0 for an automatic draft length. seed: None
    for a new one with every answer. acceptance: without effect in plain mode. `read` checks the constraints below; the
    constructor does not.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    mode: Annotated[str, AfterValidator(_known), Field(title="Mode", description=f"one of {', '.join(MODES)}")] = AUTO
    temperature: Annotated[Number, Field(ge=0, le=100, title="Temperature", description="a number from 0 to 100")] = 0.0
    top_k: Annotated[Whole, Field(ge=0, le=10**6, title="Top-k", description="a whole number from 0 up")] = 0
    top_p: Annotated[Number, Field(gt=0, le=1, title="Top-p", description="above 0 and at most 1")] = 1.0
    min_p: Annotated[Number, Field(ge=0, lt=1, title="Min-p", description="from 0 up and below 1")] = 0.0
    repetition_penalty: Annotated[
        Number, Field(ge=0.01, le=100, title="Repetition penalty", description="a number from 0.01 to 100")
    ] = 1.0
    seed: Annotated[
        Whole | None,
        Field(
            ge=0,
            le=LARGEST_WHOLE,
            title="Seed",
            description="0 or more, up to 2^53 - 1; left empty, every answer gets a new one",
        ),
    ] = 0
    max_new_tokens: Annotated[
        Whole, Field(ge=1, le=10**6, title="The number of answer tokens", description="a whole number from 1 up")
    ] = 512
    draft_tokens: Annotated[
        Whole, Field(ge=0, le=32, title="The number of draft tokens", description="a whole number from 0 to 32")
    ] = 0
    acceptance: Annotated[
        str, AfterValidator(_rule), Field(title="Acceptance", description=f"one of {', '.join(ACCEPTANCES)}")
    ] = EXACT
    system: Annotated[str, Field(max_length=10**6, title="The system prompt", description="a text")] = ""

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Settings:
        """Settings from untrusted values by name; missing ones have their default. Raises InvalidOption."""
        if not isinstance(record, Mapping):
            raise InvalidOption("Settings must be an object with names and values.")
        values = {}
        for name, value in record.items():
            try:
                values[str(name)] = sound(value)
            except ValueError as error:
                raise InvalidOption(_refusal(str(name))) from error
        try:
            return _adapter().validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            raise InvalidOption(_refusal(str(first["loc"][0]))) from error

    @classmethod
    def of(cls, *values: Any) -> Settings:
        """Settings from the values of the controls for all fields, in their order. Raises InvalidOption."""
        names = [field.name for field in fields(cls)]
        if len(values) != len(names):
            raise InvalidOption(f"There must be {len(names)} settings, not {len(values)}.")
        settings = cls.read(dict(zip(names, values, strict=True)))
        if settings.seed is not None and settings.seed > LARGEST_SEED:
            raise InvalidOption(_refusal("seed"))
        return settings

    @property
    def lossy(self) -> bool:
        """Whether drafts may change the answer."""
        return self.mode != "off" and self.acceptance != EXACT

    @property
    def samples(self) -> bool:
        return self.temperature > 0

    def seeded(self, anew: bool = False) -> Settings:
        """The settings with a seed: a new random one if there was none or with `anew`."""
        return replace(self, seed=secrets.randbelow(NEW_SEEDS)) if anew or self.seed is None else self

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `LLMPipeline.stream`. Raises InvalidOption if there is no seed."""
        if self.seed is None:
            raise InvalidOption("The seed is empty: give a whole number from 0 up.")
        return {
            "mode": self.mode,
            "do_sample": self.samples,
            "temperature": float(self.temperature),
            "top_k": int(self.top_k) or None,
            "top_p": float(self.top_p),
            "min_p": float(self.min_p),
            "repetition_penalty": float(self.repetition_penalty),
            "rng_seed": int(self.seed),
            "max_new_tokens": int(self.max_new_tokens),
            "num_assistant_tokens": None if self.mode == "off" else int(self.draft_tokens) or None,
        } | ({"acceptance": self.acceptance} if self.lossy else {})


@cache
def _adapter() -> TypeAdapter[Settings]:
    return TypeAdapter(Settings)


def _refusal(name: str) -> str:
    """An error message that says which values are allowed."""
    properties = _adapter().json_schema()["properties"]
    if name not in properties:
        return f"There is no setting {name[:40]!r}."
    return f"{properties[name]['title']} must be {properties[name]['description']}."
