"""Errors in the format of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from outrider.pipelines import (
    CacheTooSmall,
    DeviceFailed,
    EmptyPrompt,
    GenerationConfig,
    ImpossibleForm,
    InvalidOption,
    OutriderError,
    PromptTooLong,
    UnknownToken,
)

from .metrics import FAILED, REFUSED, Metrics

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
MESSAGES = {
    400: "The body cannot be read as JSON.",  # every other 400 is an ApiError
    404: "This path does not exist.",
    405: "This path does not support that method.",
}
OPTIONS = frozenset(option.name for option in fields(GenerationConfig))
FIELDS = {"rng_seed": "seed", "max_new_tokens": "max_tokens", "max_length": "max_tokens", "mode": "speculation"}
FORM = "response_format"  # the field that usually says what form an answer has
ADDED = ("missing", "extra_forbidden")  # errors about fields without a value in the request
NO_KIND = ("union_tag_not_found", "union_tag_invalid")  # errors about the discriminator of a union


class ApiError(HTTPException):
    """A refusal or failure to report to the client. `param` is the request field that caused it."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    @property
    def text(self) -> str:
        return json.dumps(self.body)


def as_api_error(error: Exception, prompt_field: str) -> ApiError:
    """The error to report to the client for an error of the pipeline.

    Unforeseen errors get a fixed message, since theirs may hold paths or prompts.
    """
    message = str(error)
    match error:
        case ApiError():
            return error
        case EmptyPrompt() | UnknownToken():
            return ApiError(400, message, prompt_field)
        case PromptTooLong():
            return ApiError(400, message, prompt_field, "context_length_exceeded")
        case CacheTooSmall():
            return ApiError(400, message, "max_tokens", "context_length_exceeded")
        case ImpossibleForm():
            return ApiError(400, f"{FORM} has a JSON schema that is not supported: {error.reason}.", FORM)
        case InvalidOption() if "structured_output_config" in message:
            return ApiError(400, message.replace("structured_output_config", FORM), FORM)
        case InvalidOption() if "no chat template" in message:
            return ApiError(400, message, prompt_field)
        case InvalidOption() if "chat template" in message:  # the rest of the message is the template engine's
            return ApiError(400, "The chat template of this model does not accept these messages.", prompt_field)
        case InvalidOption():
            name = re.split(r"\W", message, maxsplit=1)[0]
            if name not in OPTIONS:
                return ApiError(400, message)
            field = FIELDS.get(name, name)
            return ApiError(400, field + message.removeprefix(name), field)
        case DeviceFailed() if error.__cause__ is None:
            return ApiError(500, message, code="device_failed")
        case DeviceFailed():  # the message includes that of the cause, which may hold paths
            return ApiError(500, "The device failed; the server's log has the details.", code="device_failed")
        case OutriderError():
            return ApiError(500, "The model could not answer; the server's log has the details.")
    return ApiError(500, "The server failed on this request; its log has the details.")


def add_error_handlers(api: FastAPI, metrics: Metrics) -> None:
    """Report every error in OpenAI's format, and count refusals. Failures are counted where they occur."""

    def told(error: ApiError) -> JSONResponse:
        if error.status_code < 500:
            metrics.requests.labels(REFUSED).inc()
        return JSONResponse(error.body, error.status_code, error.headers)

    @api.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, ApiError):
            return told(error)
        message = MESSAGES.get(error.status_code, str(error.detail))
        param = "body" if error.status_code == 400 else None
        return told(ApiError(error.status_code, message, param, headers=error.headers))

    @api.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return told(_of_validation(error.errors(), error.body))

    @api.exception_handler(Exception)
    async def on_failure(request: Request, error: Exception) -> JSONResponse:
        metrics.requests.labels(FAILED).inc()
        return told(as_api_error(error, "messages"))


def _of_validation(errors: Sequence[Any], body: Any) -> ApiError:
    """The most specific of pydantic's errors: for a union it reports one for each alternative."""
    fields = [_field(error, body) for error in errors]
    depth, field = max(fields, key=lambda found: found[0])
    there = [error for error, found in zip(errors, fields, strict=True) if found == (depth, field)]
    error = min(there, key=lambda each: each["type"].endswith("_type"))  # those are of other alternatives
    kind = error["type"]
    if kind == "json_invalid":
        return ApiError(400, f"The body is not JSON: {error['ctx']['error']}.", "body")
    if not depth:
        return ApiError(400, "The body must be a JSON object, sent with Content-Type: application/json.", "body")
    if kind == "extra_forbidden":
        return ApiError(400, f"{field} is not a known field: leave it out.", field, "unknown_parameter")
    if kind in ("missing", "union_tag_not_found"):
        return ApiError(400, f"{field} is missing.", field, "missing_required_parameter")
    if kind == "none_required":
        return ApiError(400, f"{field} is not supported here: leave it out.", field, "unsupported_parameter")
    message = error["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{field}: {message}" + ("" if message.endswith(".") else "."), field, "invalid_value")


def _field(error: Any, body: Any) -> tuple[int, str]:
    """The depth of an error in the body, and the path of its field, without the tags of unions."""
    depth, field, value, place = 0, "", body, error["loc"][1:]
    for step in place:
        is_added = step == place[-1] and error["type"] in ADDED
        if isinstance(value, dict) and isinstance(step, str) and (step in value or is_added):
            depth, field, value = depth + 1, f"{field}.{step}" if field else step, value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            depth, field, value = depth + 1, f"{field}[{step}]", value[step]
    if error["type"] in NO_KIND:
        depth, field = depth + 1, f"{field}.{error['ctx']['discriminator'].strip(chr(39))}"
    return depth, field
