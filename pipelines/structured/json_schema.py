"""JSON schemas: rewritten so that llguidance compiles them.

llguidance refuses formats that it does not know, which in JSON Schema are no more than annotations. It also refuses
`oneOf` unless it sees that at most one of the alternatives can hold; it considers neither numbers nor what references
refer to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)  # that llguidance knows
VALUES = frozenset(("const", "enum", "default", "examples"))  # keywords whose values hold no schemas
NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions"))  # those that hold schemas by name
KINDS = {bool: "boolean", str: "string", int: "number", float: "number", type(None): "null"}
MOST_REFERENCES = 16  # that are followed one after the other: they may form a circle
MOST_LISTED = 1000  # values or names in a list that is looked at, since many references may lead to it
# What Lark's notation has besides names: strings, comments, regular expressions, and schemas behind %json.
LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|(?://|#)[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<schema>%json\s*)(?=\{)')
DECODER = json.JSONDecoder()

Schema: TypeAlias = Mapping[str, Any]
Values: TypeAlias = "set[tuple[str, Any]]"  # scalars with their kinds


def supported(text: str) -> str:
    """The same schema without unknown formats, and with `anyOf` for `oneOf` where these are sure to mean the same."""
    try:
        schema = json.loads(text)
        if schema is True:
            schema = {}  # means the same, and llguidance also accepts it at the top level
        return json.dumps(_rewritten(schema, schema), allow_nan=False)
    except (ValueError, RecursionError):
        return text  # llguidance tells what is wrong with it


def supported_in_lark(grammar: str) -> str:
    """A grammar in Lark's notation with its schemas rewritten."""
    written, at = "", 0
    while (found := LARK.search(grammar, at)) is not None:
        end = found.end()
        if found["schema"]:
            try:
                _, end = DECODER.raw_decode(grammar, end)
            except (ValueError, RecursionError):
                break
        written += grammar[at : found.end()] + (supported(grammar[found.end() : end]) if found["schema"] else "")
        at = end
    return written + grammar[at:]


def _rewritten(schema: Any, root: Any) -> Any:
    """The schema as `supported` gives it. `root` is the one that "#" stands for in its references."""
    if isinstance(schema, list):
        return [_rewritten(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$id" in schema:
        root = schema
    kept = {}
    for name, value in schema.items():
        if name in VALUES:
            kept[name] = value
        elif name in NAMED and isinstance(value, dict):
            kept[name] = {each: _rewritten(inner, root) for each, inner in value.items()}
        elif name != "format" or not isinstance(value, str) or value in FORMATS:
            kept[name] = _rewritten(value, root)
    alternatives = schema.get("oneOf")
    if "anyOf" not in schema and isinstance(alternatives, list) and _exclude_each_other(alternatives, root):
        kept = {"anyOf" if name == "oneOf" else name: value for name, value in kept.items()}
    return kept


def _exclude_each_other(alternatives: Sequence[Any], root: Any) -> bool:
    """Whether it is certain by types, values, or the values of a property that at most one of these schemas holds."""
    by_kind: dict[str, list[Schema]] = {}
    for alternative in alternatives:
        found = _resolved(alternative, root)
        kinds = None if found is None else _kinds(found)
        if found is None or kinds is None:
            return False
        for kind in kinds:
            by_kind.setdefault(kind, []).append(found)
    return all(
        len(found) == 1 or _differ(map(_values, found)) or (kind == "object" and _have_a_tag(found, root))
        for kind, found in by_kind.items()
    )


def _have_a_tag(objects: Sequence[Schema], root: Any) -> bool:
    """Whether there is a property that all of these schemas require, with different values in each of them."""
    tags = [_values_of_required(each, root) for each in objects]
    return any(_differ(each.get(name) for each in tags) for name in tags[0])


def _values_of_required(schema: Schema, root: Any) -> dict[str, Values | None]:
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or len(required) > MOST_LISTED or not isinstance(properties, dict):
        return {}
    found = {name: _resolved(properties.get(name), root) for name in required if isinstance(name, str)}
    return {name: None if each is None else _values(each) for name, each in found.items()}


def _differ(groups: Iterable[Values | None]) -> bool:
    """Whether no value is in two of these groups; None is an unknown one."""
    known: Values = set()
    for group in groups:
        if group is None or known & group:
            return False
        known |= group
    return True


def _kinds(schema: Schema) -> set[str] | None:
    """The kinds of values that a schema allows, if it tells. It may exclude some of them in other ways."""
    if (values := _values(schema)) is not None:
        return {kind for kind, _ in values}
    named = schema.get("type")
    kinds = [named] if isinstance(named, str) else named
    return {"number" if kind == "integer" else str(kind) for kind in kinds} if isinstance(kinds, list) else None


def _values(schema: Schema) -> Values | None:
    """The values that a schema allows, if it lists scalars. It may exclude some of them in other ways."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(listed, list) or len(listed) > MOST_LISTED:
        return None
    return {(KINDS[type(each)], each) for each in listed} if all(type(each) in KINDS for each in listed) else None


def _resolved(schema: Any, root: Any) -> Schema | None:
    """What a schema refers to; None if unknown. Keywords beside the reference are ignored: they can only allow less."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, dict) or ("$id" in schema and schema is not root):
            return None
        if "$ref" not in schema:
            return schema
        reference = schema["$ref"]
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        schema = root
        for step in reference[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            schema = schema.get(step) if isinstance(schema, dict) else None
    return None
