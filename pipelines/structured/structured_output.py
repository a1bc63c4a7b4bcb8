"""StructuredOutputConfig: the form that an answer must have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import openvino_genai

from ..errors import InvalidOption


@dataclass(frozen=True, slots=True)
class StructuredOutputConfig:
    """The form of an answer, given by exactly one of three fields. Raises InvalidOption for none, several, or any other
    type than a string.

    json_schema: a JSON schema, as JSON text. As in JSON Schema, an object may have keys that the schema does not name,
        unless it says `"additionalProperties": false`; OpenVINO GenAI allows no others.
    regex: a regular expression that the whole answer must match.
    grammar: a context-free grammar in Lark's notation, or in that of llama.cpp (GBNF).

    llguidance determines which keywords and syntax are possible; others are refused when the request is made.
    """

    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in given.items() if value is not None}
        if len(given) != 1:
            raise InvalidOption(
                f"structured_output_config has {len(given)} of json_schema, regex and grammar: give exactly one."
            )
        for name, value in given.items():
            if not isinstance(value, str):
                raise InvalidOption(f"structured_output_config.{name}={value!r} is not possible: give a string.")

    @property
    def form(self) -> tuple[str, str]:
        """The name of the field that is given, and its value."""
        for field in fields(self):
            if (text := getattr(self, field.name)) is not None:
                return field.name, text
        raise AssertionError("checked when it was made")

    @classmethod
    def of(cls, value: Any) -> StructuredOutputConfig:
        """The same, or converted from `openvino_genai`'s class. Raises InvalidOption for any other type, and for what
        only that class has."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, openvino_genai.StructuredOutputConfig):
            raise InvalidOption(f"structured_output_config={value!r} is not possible: give a StructuredOutputConfig.")
        for name in ("structural_tags_config", "compound_grammar"):
            if getattr(value, name) is not None:
                raise InvalidOption(
                    f"structured_output_config.{name} is not supported: give a json_schema, a regex or a grammar."
                )
        return cls(**{field.name: getattr(value, field.name) for field in fields(cls)})
