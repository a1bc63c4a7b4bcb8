"""Types of the fields of requests, with their limits."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticKnownError

MOST_LEVELS = 100  # of nested objects and lists
MOST_MEMBERS = 2000  # of all nested objects together: chat templates take long for many
MOST_BIASES = 1024  # each is applied at every generated token
MOST_PROMPTS = 128
MOST_MESSAGES = 2_000
MOST_TOOLS = 128
MOST_STOPS = 64  # each is searched for after every generated token


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair is not a character") from None
    return text


def _few(biases: Any) -> Any:
    if isinstance(biases, dict) and len(biases) > MOST_BIASES:
        raise ValueError(f"at most {MOST_BIASES} token ids are allowed")
    return biases


def _supported(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        raise PydanticKnownError("none_required") from None  # which is told as that the field is not supported


def modest(value: Any) -> Any:
    """Returns `value`. Raises ValueError if it is nested too deeply, has too many members to process, or holds what
    JSON in UTF-8 cannot: NaN, infinity or half characters."""
    level, num_members = [value], 0
    for _ in range(MOST_LEVELS + 1):
        objects = [each for each in level if isinstance(each, dict)]
        num_members += sum(map(len, objects))
        if num_members > MOST_MEMBERS:
            raise ValueError(f"it has too many members: at most {MOST_MEMBERS} are allowed in all objects together")
        inner = [each.values() for each in objects] + [each for each in level if isinstance(each, list)]
        level = [each for several in inner for each in several]
        if not level:
            _encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
            return value
    raise ValueError(f"it is nested too deeply: at most {MOST_LEVELS} levels are allowed")


NO_OTHER = WrapValidator(_supported)  # for fields of which only the values that ask for nothing are supported
JsonObject: TypeAlias = Annotated[dict[str, Any], AfterValidator(modest)]
Text: TypeAlias = Annotated[str, AfterValidator(_encodable)]
Stop: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_encodable)]
Stops: TypeAlias = Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS, fail_fast=True)]
TokenKey: TypeAlias = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
Biases: TypeAlias = Annotated[
    dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MOST_BIASES), BeforeValidator(_few)
]
TokenIds: TypeAlias = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]


def _kind_of_prompt(prompt: Any) -> str | None:
    """Decides by the first item, so that an error is about the alternative that was meant."""
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list):
        return None
    first = prompt[0] if prompt else ""
    kinds = {str: "texts", int: "ids", list: "lists of ids"}
    return kinds.get(type(first))


Prompts: TypeAlias = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True), Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True), Tag("lists of ids")],
    Discriminator(
        _kind_of_prompt,
        custom_error_type="prompt",
        custom_error_message="Input should be a string, a list of token ids, or a list of several of either",
    ),
]


class Strict(BaseModel):
    """Refuses coercions and unknown fields that are not null, which would be their default.

    It reports one error at most: a million take minutes and gigabytes.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, json_schema_extra={"additionalProperties": {"type": "null"}}
    )

    @model_validator(mode="before")
    @classmethod
    def _without_more_unknown_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = next((name for name, value in data.items() if name not in known and value is not None), None)
        return {name: value for name, value in data.items() if name in known or name == unknown}
