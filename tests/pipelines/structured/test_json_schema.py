"""JSON schemas that llguidance would refuse are rewritten in what it compiles, with the same meaning."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from outrider.pipelines import ImpossibleForm, LLMPipeline, StructuredOutputConfig
from outrider.pipelines.structured.json_schema import FORMATS, supported, supported_in_lark

STANDARD = (
    "date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
    "uri-reference", "iri", "iri-reference", "uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 1.0, 1.5, "a", "b", [], [1], {}, {"k": "a"}, {"k": "b"}, {"k": 1}, {"k": None, "x": 1},
)  # fmt: skip


def reason_against(schema: Any) -> str:
    """Why llguidance does not compile it; nothing if it does."""
    return LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema)))


def rewritten(schema: Any) -> Any:
    return json.loads(supported(json.dumps(schema)))


@pytest.mark.parametrize("name", [*STANDARD, "password", "path", "binary"])
def test_formats_are_kept_where_llguidance_knows_them(name: str) -> None:
    schema = {"type": "string", "format": name}
    assert (not reason_against(schema)) == (name in FORMATS)
    assert rewritten(schema) == (schema if name in FORMATS else {"type": "string"})


def test_only_the_keyword_format_is_left_out() -> None:
    schema = {
        "properties": {"format": {"type": "string"}, "default": {"items": {"type": "string"}}},
        "enum": [{"format": "path"}],
        "default": {"format": "path"},
        "examples": [{"format": "path"}],
        "$defs": {"format": {"const": {"format": "path"}}},
        "format": 3,
    }
    assert rewritten(schema) == schema
    inner = {"type": "string", "format": "path"}
    schema = {"properties": {"default": inner}, "anyOf": [inner], "additionalProperties": inner, "$defs": {"x": inner}}
    assert rewritten(schema) == json.loads(json.dumps(schema).replace(', "format": "path"', ""))


def tagged(kind: Any, **more: Any) -> Any:
    return {"type": "object", "properties": {"kind": kind}, "required": ["kind"], **more}


PETS = {"cat": tagged({"const": "cat"}), "dog": tagged({"enum": ["dog", "wolf"]}), "same": {"$ref": "#/$defs/cat"}}
CIRCLE = {"round": {"$ref": "#/$defs/about"}, "about": {"$ref": "#/$defs/round"}}


def definition(name: str) -> Any:
    return {"$ref": f"#/$defs/{name}"}


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"const": 1, "title": "one"}, {"const": 2}],
        [{"const": 1}, {"const": True}, {"const": "1"}, {"enum": [2, 3]}],
        [{"type": "integer"}, {"type": ["string", "null"]}, {"type": "array", "items": {}}],
        [definition("cat"), definition("dog")],
        [definition("cat"), definition("dog"), {"type": "null"}, {"const": "bird"}],
        [tagged(definition("one")), tagged({"const": 2})],
    ],
    ids=str,
)
def test_alternatives_that_exclude_each_other_are_those_of_any_of(alternatives: Any) -> None:
    schema = {"$defs": {**PETS, "one": {"const": 1}}, "oneOf": alternatives, "description": "x"}
    found = rewritten(schema)
    assert found == {**{name: value for name, value in schema.items() if name != "oneOf"}, "anyOf": alternatives}
    assert list(found) == ["$defs", "anyOf", "description"]
    assert not reason_against(found)


@pytest.mark.parametrize(
    "alternatives",
    [
        [{"const": 1}, {"const": 1.0}],
        [{"type": "integer"}, {"type": "number"}],
        [{"type": "string"}, {"const": "a"}],
        [{"const": "a"}, {}],
        [{"type": "string"}, True],
        [definition("cat"), definition("same")],
        [definition("cat"), definition("dog"), {"type": "object"}],
        [definition("cat"), {**PETS["dog"], "required": []}],
        [definition("cat"), tagged({"type": "string"})],
        [definition("cat"), {"properties": {"kind": {"const": "dog"}}, "required": ["kind"]}],
        [definition("round"), definition("cat")],
        [definition("none"), {"type": "string"}],
        [{"$ref": "http://example.org/x"}, {"type": "string"}],
        [{"$id": "x", "$ref": "#/$defs/dog"}, definition("cat")],
    ],
    ids=str,
)
def test_other_alternatives_are_left_as_they_are(alternatives: Any) -> None:
    schema = {"oneOf": alternatives, "$defs": {**PETS, **CIRCLE}}
    assert rewritten(schema) == schema
    beside = {"oneOf": [{"type": "null"}, {"type": "string"}], "anyOf": [{}]}
    assert rewritten(beside) == beside


def test_references_begin_at_the_nearest_id() -> None:
    inner = {"$id": "inner", "oneOf": [definition("cat"), definition("dog")], "$defs": {"cat": {}, "dog": {}}}
    schema = {"items": inner, "$defs": PETS}
    assert rewritten(schema) == schema


def some_schema(rng: random.Random) -> Any:
    keywords: dict[str, Any] = {
        "type": rng.choice(["object", "string", "integer", "number", "boolean", ["null", "string"], "array"]),
        "const": rng.choice(VALUES),
        "enum": rng.sample(VALUES, 2),
        "properties": {"k": {"const": rng.choice(["a", "b", 1, None])}},
        "required": ["k"],
    }
    if rng.random() < 0.4:
        return {name: keywords[name] for name in ("properties", "required")} | {"type": "object"}
    return {name: keywords[name] for name in rng.sample(sorted(keywords), rng.randint(1, 2))}


def test_no_value_fits_two_alternatives_that_are_said_to_exclude_each_other() -> None:
    rng, num_rewritten = random.Random(1), 0
    for _ in range(600):
        schemas = [some_schema(rng) for _ in range(rng.randint(2, 3))]
        found = rewritten({"oneOf": [definition(str(i)) for i in range(len(schemas))],
                           "$defs": {str(i): each for i, each in enumerate(schemas)}})  # fmt: skip
        if "anyOf" in found:
            num_rewritten += 1
            validators = [jsonschema.Draft202012Validator(each) for each in schemas]
            assert all(sum(each.is_valid(value) for each in validators) <= 1 for value in VALUES), schemas
    assert num_rewritten > 50


@pytest.mark.parametrize("text", ["{", "[" * 5000 + "]" * 5000, '{"const": NaN}', '{"maximum": 1e999}'])
def test_what_is_no_schema_is_left_to_llguidance(text: str) -> None:
    assert supported(text) == text


def test_schemas_in_a_grammar_are_rewritten_and_nothing_else() -> None:
    schema = '{"type": "string", "format": "path", "description": "%json {} \\" # // /"}'
    rest = '// %json {"format": "path"}\nb: "%json {\\"format\\": 1}" /%json {"format": "path"}/ "#" "a//b" /[#"]/ '
    found = supported_in_lark(f"start: b %json {schema} c\n{rest} %json\n{schema}\nc: %json {{")
    plain = schema.replace(', "format": "path"', "")
    start = f"start: b %json {schema} c\n"
    assert json.loads(plain)
    assert found == f"{start}{rest} %json\n{schema}\nc: %json {{".replace(schema, plain)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"json_schema": '{"oneOf": [{"type": "integer"}, {"type": "number"}]}'},
            "oneOf is supported only where types",
        ),
        ({"grammar": 'start: "a" x\nx: %json {"uniqueItems": 1}'}, 'JSON schema: Unimplemented keys: ["uniqueItems"]'),
    ],
    ids=["oneOf", "grammar"],
)
def test_a_reason_is_told_in_words_that_help(pipeline: LLMPipeline, given: Any, reason: str) -> None:
    with pytest.raises(ImpossibleForm) as refused:
        pipeline.generate("x", structured_output_config=StructuredOutputConfig(**given))
    assert reason in refused.value.reason
    assert "coerce_one_of" not in str(refused.value)
    assert "\n" not in refused.value.reason


def test_the_schema_of_any_value_is_taken_as_true(pipeline: LLMPipeline) -> None:
    asked = {"max_new_tokens": 8, "do_sample": True, "rng_seed": 3}
    answers = [
        pipeline.generate("x", structured_output_config=StructuredOutputConfig(json_schema=schema), **asked)
        for schema in ("true", "{}")
    ]
    assert answers[0] == answers[1]


def test_a_format_that_llguidance_does_not_know_is_no_reason_to_refuse(pipeline: LLMPipeline) -> None:
    schema = {"type": "object", "properties": {"p": {"type": "string", "format": "path"}}}
    for given in ({"json_schema": json.dumps(schema)}, {"grammar": f"start: %json {json.dumps(schema)}"}):
        form = StructuredOutputConfig(**given)
        assert str(pipeline.generate("x", structured_output_config=form, max_new_tokens=2)).startswith("{")
