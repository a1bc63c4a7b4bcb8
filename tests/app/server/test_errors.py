"""What clients are told of errors of the pipeline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from pydantic import BaseModel

from outrider.app.server.errors import as_api_error
from outrider.app.server.events import EventStream
from outrider.app.server.responses import ErrorDetail
from outrider.pipelines import DeviceFailed, InvalidOption, OutriderError


@pytest.mark.parametrize("kind", [DeviceFailed, OutriderError, RuntimeError])
def test_no_path_of_this_machine_is_told(kind: type[Exception]) -> None:
    error = kind("failed (/secret/plugin.cpp:3 broke).")
    error.__cause__ = RuntimeError("/secret/plugin.cpp:3 broke")
    told = as_api_error(error, "prompt")
    assert told.status_code == 500
    assert "secret" not in told.text


def test_what_the_device_is_known_to_do_is_told() -> None:
    message = "It ended the answer after 3 of 9 tokens."
    told = as_api_error(DeviceFailed(message), "prompt")
    assert (told.status_code, told.code, told.detail) == (500, "device_failed", message)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("logit_bias has the token id 9: give others.", "logit_bias"),
        ("max_new_tokens=0 is not possible: give more.", "max_tokens"),
        ("structured_output_config cannot be followed any further: make it simpler.", "response_format"),
        ("The chat template of this model refuses these messages: /secret", "messages"),
    ],
)
def test_a_refusal_names_the_field_of_the_request(message: str, field: str) -> None:
    told = as_api_error(InvalidOption(message), "messages")
    assert (told.status_code, told.param) == (400, field)
    assert "secret" not in told.text
    assert "structured_output_config" not in told.text


def test_a_stream_that_fails_tells_so_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def events() -> AsyncIterator[BaseModel]:
        yield ErrorDetail(message="first", type="", param=None, code=None)
        raise RuntimeError("/home/someone/secret")

    async def sent() -> list[bytes]:
        return [part async for part in EventStream(events(), lambda: None).body_iterator]  # type: ignore[misc]

    first, error, end = asyncio.run(sent())
    assert b'"first"' in first
    assert json.loads(error.removeprefix(b"data: "))["error"]["type"] == "server_error"
    assert b"secret" not in error
    assert end == b"data: [DONE]\n\n"
    assert "secret" in caplog.text
