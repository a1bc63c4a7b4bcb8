"""Bad requests: each gets a 4xx in OpenAI's shape, with the field named, and tells nothing of this machine."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from outrider.app.server.limits import MIB, Limits
from outrider.app.server.serve import GRACE_S
from outrider.pipelines import LLMPipeline

from .serving import LOCAL, MODEL, Served, running, user

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = user("x")
LONG = "word " * 3000


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error"}
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    for secret in ("Traceback", ".py", "/home", "/tmp", ".cpp", "site-packages"):
        assert secret not in answer.text
    return error


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"model": MODEL}, "messages"),
        ({"messages": MESSAGES}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour"),
        ({"messages": user("")}, "messages"),
        ({"messages": user(LONG)}, "messages"),
        ({"messages": user("\ud800")}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]}]},
         "messages[1].tool_calls[0].function.arguments"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"n": "2"}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x", ""]}, "stop[1]"),
        ({"stop": {"x": 1}}, "stop"),
        ({"stop": [str(i) for i in range(65)]}, "stop"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"five": 1}}, "logit_bias.five"),
        ({"logit_bias": {"1000000000": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"echo": True}, "echo"),
        ({"suffix": "y"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"speculation": "warp"}, "speculation"),
        ({"top_k": 0}, "top_k"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty"),
        ({"store": True}, "store"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)  # fmt: skip
def test_the_field_of_a_bad_conversation_is_named(served: Served, body: dict[str, Any], field: str) -> None:
    if body.keys() != {"model"} and "model" not in body and field != "model":
        body = {"model": MODEL, "messages": MESSAGES, **body}
    before = served.metric('outrider_requests_total{outcome="refused"}')
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(served.url + CHAT, content=json.dumps(body), headers=headers, timeout=60)
    assert error_of(answer, 400)["param"] == field
    assert served.metric('outrider_requests_total{outcome="refused"}') == before + 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["x", ""]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt[1]"),
        ({"prompt": ["x", 1]}, "prompt[1]"),
        ({"prompt": [[1], "x"]}, "prompt[1]"),
        ({"prompt": [[1], ["x"]]}, "prompt[1][0]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [None]}, "prompt"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [1, 10**9]}, "prompt"),
        ({"prompt": [[1], [10**9]]}, "prompt"),
        ({"prompt": [1] * 3000}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": LONG}, "prompt"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "logprobs": 6}, "logprobs"),
        ({"prompt": "x", "logit_bias": {"5": "much"}}, "logit_bias.5"),
        ({"prompt": "x", "logit_bias": [5]}, "logit_bias"),
        ({"prompt": "x", "best_of": 2}, "best_of"),
        ({"prompt": ["x"] * 3, "n": 100, "temperature": 1}, "n"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_the_field_of_a_bad_completion_is_named(served: Served, body: dict[str, Any], field: str) -> None:
    assert error_of(served.post(COMPLETIONS, {"model": MODEL, **body}), 400)["param"] == field


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"suffix": "y"}, "suffix"),
        (COMPLETIONS, {"best_of": 2}, "best_of"),
        (CHAT, {"store": True}, "store"),
        (CHAT, {"service_tier": "flex"}, "service_tier"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
)
def test_a_known_field_that_is_not_supported_is_said_to_be_so(
    served: Served, path: str, body: dict[str, Any], field: str
) -> None:
    asked = {"prompt": "x"} if path == COMPLETIONS else {"messages": MESSAGES}
    error = error_of(served.post(path, {"model": MODEL, **asked, **body}), 400)
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert error["message"] == f"{field} is not supported here: leave it out."


def test_a_prompt_that_is_too_long_is_known_by_its_code(served: Served) -> None:
    error = error_of(served.post(CHAT, {"model": MODEL, "messages": user(LONG)}), 400)
    assert error["code"] == "context_length_exceeded"
    assert str(served.pipeline.max_context) in error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 100_000, b'{"model": NaN}', b'{"model": 1e999}']
)
def test_what_is_no_json_object_is_refused(served: Served, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    for path in (CHAT, COMPLETIONS):
        answer = httpx.post(served.url + path, content=body, headers=headers, timeout=60)
        assert error_of(answer, 400)["param"] in ("body", "model", None)


def test_json_under_another_name_is_refused(served: Served) -> None:
    """A web page can send text/plain anywhere without being asked."""
    body = json.dumps({"model": MODEL, "messages": MESSAGES})
    answer = httpx.post(served.url + CHAT, content=body, headers={"Content-Type": "text/plain"})
    assert "application/json" in error_of(answer, 400)["message"]


def test_another_model_is_not_found(served: Served) -> None:
    error = error_of(served.post(CHAT, {"model": "gpt-5", "messages": MESSAGES}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert MODEL in error["message"]
    error_of(served.get("/v1/models/gpt-5"), 404)


def test_other_addresses_and_methods_are_refused(served: Served) -> None:
    error_of(served.get("/v1/embeddings"), 404)
    error_of(served.get("/docs"), 404)
    error_of(served.get(CHAT), 405)
    error_of(served.post("/v1/models", {}), 405)
    error_of(served.get("/v1/models/"), 404)  # no address is made of the Host header to send a client to


def test_a_body_that_is_too_large_is_not_read(served: Served) -> None:
    body = {"model": MODEL, "messages": user("x" * 9 * MIB)}
    assert error_of(served.post(CHAT, body), 413)["param"] == "body"

    def parts() -> Any:  # sent in chunks, nobody knows beforehand how much it will be
        yield b'{"model": "'
        for _ in range(9):
            yield b"x" * MIB

    answer = httpx.post(served.url + CHAT, content=parts(), headers={"Content-Type": "application/json"})
    error_of(answer, 413)
    served.post(COMPLETIONS, {"model": MODEL, "prompt": "x", "max_tokens": 1}).raise_for_status()


def test_a_body_that_does_not_come_is_not_waited_for(pipeline: LLMPipeline) -> None:
    with running(pipeline, Limits(body_s=0.2)) as served:
        host, port = LOCAL, int(served.url.rpartition(":")[2])
        headers = f"Host: {LOCAL}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
        request = f"POST {CHAT} HTTP/1.1\r\n{headers}\r\n{{"
        with socket.create_connection((host, port), timeout=10) as connection:
            connection.sendall(request.encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()  # until it is closed
        assert answer.startswith("HTTP/1.1 408 ")
        assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["param"] == "body"
        long = {"model": MODEL, "prompt": "x", "max_tokens": 150, "speculation": "off"}  # takes longer than that
        served.post(COMPLETIONS, long).raise_for_status()


def test_the_server_ends_while_a_body_is_arriving(pipeline: LLMPipeline) -> None:
    headers = f"Host: {LOCAL}\r\nContent-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n"
    with ExitStack() as opened:
        with running(pipeline) as served:
            connection = opened.enter_context(socket.create_connection((LOCAL, served.port), timeout=10))
            connection.sendall(f"POST {CHAT} HTTP/1.1\r\n{headers}\r\n{{".encode())
            assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")  # sent as soon as it waits for the body
            began = time.monotonic()
        assert time.monotonic() - began < GRACE_S / 2
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 503 ")
    assert "\nconnection: close\r\n" in answer.lower()
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "shutting_down"


def test_what_is_no_http_harms_nobody(served: Served) -> None:
    host, port = LOCAL, int(served.url.rpartition(":")[2])
    for data in (b"\x16\x03\x01\x00", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):
        with socket.create_connection((host, port), timeout=10) as connection:
            connection.sendall(data)
    assert served.get("/health").json()["status"] == "ok"
