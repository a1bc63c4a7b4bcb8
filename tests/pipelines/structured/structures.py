"""Forms of answers at random: JSON schemas, regular expressions and grammars. Same seed, same forms."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import regex

from outrider.pipelines import GenerationConfig, StructuredOutputConfig

from ..requests import Asked, Asking

NAMES = ("name", "kind", "description", "a", "is_valid", "größe", "two words")
WORDS = ("alpha", "alphabet", "beta", "nothing more to say about it", "x", "naïve ☕", "def area(width, height):")
PARTS = ("[a-f]{1,4}", "[0-9]+", "[a-z ]{2,8}", "(\\.|,)", "[xyz]?", "(\\(|\\[)[0-9]{2}", "[A-Z][a-z]*")
GRAMMARS = (
    'start: item ("," " "? item)*\nitem: /[a-z]+/ "=" /[0-9]{1,3}/',
    'root ::= "(" root ")" | "[" [0-9]+ "]"',
    'start: "def " /[a-z_]{1,9}/ "():\\n    return " (/[0-9]+/ | "None")',
)


def of_schema(value: Any) -> StructuredOutputConfig:
    return StructuredOutputConfig(json_schema=json.dumps(value))


class Structures:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def any(self) -> StructuredOutputConfig:
        kind = self._rng.random()
        if kind < 0.6:
            return of_schema(self.schema(2))
        if kind < 0.85:
            return StructuredOutputConfig(regex=self.regex())
        return StructuredOutputConfig(grammar=self._rng.choice(GRAMMARS))

    def schema(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        kinds = ["string", "integer", "number", "enum", "const", "pattern", "boolean"]
        kind = rng.choice(kinds if not depth else ["object", "object", "array", "any of", *kinds])
        if kind == "object":
            names = rng.sample(NAMES, rng.randint(1, 4))
            properties = {name: self.schema(depth - 1) for name in names}
            required = names[: rng.randint(0, len(names))]
            return {"type": kind, "properties": properties, "required": required, "additionalProperties": False}
        if kind == "array":
            return {"type": kind, "items": self.schema(depth - 1), "maxItems": rng.randint(1, 3)}
        if kind == "any of":
            return {"anyOf": [{"type": "null"}, self.schema(depth - 1)]}
        return {
            "string": {"type": "string", "maxLength": rng.randint(1, 12)},
            "integer": {"type": "integer", "minimum": rng.randint(-50, 0), "maximum": rng.randint(1, 5000)},
            "number": {"type": "number", "minimum": 0, "maximum": rng.randint(1, 9)},
            "enum": {"enum": rng.sample([*WORDS, 7, None, True], 3)},
            "const": {"const": rng.choice(WORDS)},
            "pattern": {"type": "string", "pattern": f"^{self.regex()}$"},
            "boolean": {"type": "boolean"},
        }[kind]

    def regex(self) -> str:
        """Words among parts of which no character is certain."""
        rng = self._rng
        words = [re.escape(word).replace("\\ ", " ") for word in rng.sample(WORDS, 2) if word.isascii()]
        parts = [*rng.choices(PARTS, k=rng.randint(1, 3)), *words[: rng.randint(0, 1)]]
        return "".join(rng.sample(parts, len(parts)))

    def open_regex(self) -> str:
        """A pattern that leaves a choice of several characters everywhere."""
        return "".join(self._rng.choices(PARTS, k=self._rng.randint(2, 4)))

    def question(self, asking: Asking, max_new_tokens: int, form: StructuredOutputConfig | None = None) -> Asked:
        """A question of any kind, that wants its answer in a form."""
        asked = asking.question()
        options = {"structured_output_config": form or self.any(), "min_new_tokens": 0}
        return Asked(asked.prompt, asked.config.updated(options), max_new_tokens, asked.answer, asked.kind)


def check_form(config: GenerationConfig, text: str, is_whole: bool) -> None:
    """Whether a text, or what there is of it, has the form that was asked for. Grammars are for other tests."""
    form = config.structured_output_config
    assert form is not None
    if form.regex is not None:
        assert regex.fullmatch(form.regex, text.rstrip("\ufffd"), partial=not is_whole), (form, text)
    elif form.json_schema is not None and is_whole:
        jsonschema.validate(json.loads(text), json.loads(form.json_schema))
