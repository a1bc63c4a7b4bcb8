"""Bodies that take long to read, or too deep: each gets a clear 4xx in bounded time, and others are answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from outrider.app.server.limits import MIB, Limits
from outrider.pipelines import LLMPipeline

from ..server.serving import MODEL, PATIENCE_S, Served, running, user, wait_until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED = {"model": MODEL, "prompt": "x", "max_tokens": 2}
DEEP = 100_000


@pytest.fixture(scope="module")
def served(tool_pipeline: LLMPipeline) -> Iterator[Served]:
    with running(tool_pipeline, Limits(read_s=PATIENCE_S)) as served:
        yield served


def conversation(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": user("x"), "max_tokens": 4, **fields}


def in_schema(schema: Any) -> dict[str, Any]:
    return conversation(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def in_tool(schema: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return conversation(tools=[tool], tool_choice="required")


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def error_of(served: Served, path: str, body: Any) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(served.url + path, content=content, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 400, answer.text
    for secret in ("Traceback", ".py", ".rs", ".c:", "backtrace", "site-packages"):
        assert secret not in answer.text
    assert len(answer.text) < 2000
    return answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        b'{"messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}",
    ],
    ids=["lists", "objects", "messages", "messages that Python reads"],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_deep_bodies_are_refused(served: Served, path: str, body: bytes) -> None:
    error_of(served, path, body)


@pytest.mark.parametrize(
    "schema",
    [nested(101), nested(400), {"type": "object", "properties": {f"p{i}": {} for i in range(100_000)}}],
    ids=["deep", "deeper", "properties"],
)
@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (in_schema, "response_format.json_schema.schema"),
        (in_tool, "tools[0].function.parameters"),
        (lambda schema: {**in_tool(schema), "tool_choice": "auto"}, "tools[0].function.parameters"),
    ],
    ids=["schema", "tool", "tool that may be called"],
)
def test_deep_and_large_schemas_are_refused_by_name(served: Served, ask: Any, field: str, schema: Any) -> None:
    assert error_of(served, CHAT, ask(schema))["param"] == field


@pytest.mark.parametrize("levels", [101, 400, DEEP])
def test_deep_arguments_of_calls_are_refused_by_name(served: Served, levels: int) -> None:
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a":' * levels + "1" + "}" * levels},
    }
    body = conversation(messages=[*user("x"), {"role": "assistant", "tool_calls": [call]}])
    assert error_of(served, CHAT, body)["param"] == "messages[1].tool_calls[0].function.arguments"


def test_a_schema_that_is_as_deep_as_is_allowed_is_kept(served: Served) -> None:
    served.post(CHAT, in_schema(nested(30))).raise_for_status()


@pytest.mark.parametrize("ask", [in_schema, in_tool])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 99999999977},
        {"type": "number", "multipleOf": 3.00000000000007},
        {"anyOf": [{"type": "integer", "multipleOf": prime} for prime in (9973, 9967, 9949)]},
        {"enum": [f"x{i}" for i in range(100_000)]},
        {"allOf": [{"anyOf": [{"type": "object", "properties": {f"a{i}_{j}": {"type": "string"}}} for j in range(4)]}
                   for i in range(7)]},
    ],
    ids=["divisor", "fine divisor", "divisors", "enum", "product"],
)  # fmt: skip
def test_pathological_schemas_are_refused_while_others_are_answered(served: Served, ask: Any, schema: Any) -> None:
    with ThreadPoolExecutor(1) as threads:
        refused = threads.submit(error_of, served, CHAT, ask(schema))
        while not refused.done():
            served.post(COMPLETIONS, ASKED).raise_for_status()
        assert refused.result()["param"].startswith("tools" if ask is in_tool else "response_format")


def test_ordinary_divisors_are_kept(served: Served) -> None:
    for divisor in (0.01, 5, 60, 1000, 1_000_000):
        schema = {"type": "integer" if divisor >= 1 else "number", "multipleOf": divisor, "minimum": 0}
        served.post(CHAT, in_schema(schema)).raise_for_status()


def test_a_prompt_of_many_megabytes_is_refused_while_others_are_answered(served: Served) -> None:
    with ThreadPoolExecutor(1) as threads:
        refused = threads.submit(error_of, served, CHAT, conversation(messages=user("word " * (7 * MIB // 5))))
        while not refused.done():
            served.post(COMPLETIONS, ASKED).raise_for_status()
        assert refused.result()["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "words"),
    [(in_schema({"type": "object"}), "The structure"), (conversation(messages=user("word " * 20_000)), "The prompt")],
    ids=["structure", "prompt"],
)
def test_what_takes_too_long_to_read_is_given_up_and_stops_no_other(
    tool_pipeline: LLMPipeline, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], words: str
) -> None:
    """Three at a time, though two can be read at once: the third has not been begun."""
    let_go, streams = threading.Event(), tool_pipeline.streams

    def slow(inputs: Any, **options: Any) -> Any:
        if options.get("max_new_tokens") == body["max_tokens"]:
            let_go.wait(PATIENCE_S)
        return streams(inputs, **options)

    monkeypatch.setattr(tool_pipeline, "streams", slow)
    with running(tool_pipeline, Limits(read_s=0.5)) as served, ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(served.post, CHAT, body) for _ in range(3)]
        while not all(each.done() for each in asked):
            served.post(COMPLETIONS, ASKED).raise_for_status()
        refused = sorted((each.result() for each in asked), key=lambda answer: answer.status_code)
        assert [answer.status_code for answer in refused] == [400, 400, 503]
        assert refused[0].json()["error"]["message"].startswith(words)
        codes = [answer.json()["error"]["code"] for answer in refused]
        assert codes == ["too_complex", "too_complex", "preprocessing_busy"]
        preprocessor = served.server.worker._preprocessor
        queue = preprocessor._heavy._work_queue
        num_queued = queue.qsize()
        at_once = served.post(CHAT, body)
        assert (at_once.status_code, at_once.json()["error"]["code"]) == (503, "preprocessing_busy")
        assert queue.qsize() == num_queued, "it waits for no thread"
        assert served.get("/health").status_code == 200, "other requests are answered"
        let_go.set()
        wait_until(lambda: served.server.worker.num_open == 0 and served.pool.num_free == served.pool.num_blocks)
        wait_until(lambda: not preprocessor._is_occupied())
        served.post(CHAT, body | {"max_tokens": 2, "messages": user("x")}).raise_for_status()


def test_an_automaton_has_no_more_states_than_the_largest_divisor_allows(served: Served) -> None:
    """One for each remainder. The primes around that limit are 99,991 and 100,003."""
    served.post(CHAT, in_schema({"type": "integer", "multipleOf": 99_991})).raise_for_status()
    assert error_of(served, CHAT, in_schema({"type": "integer", "multipleOf": 100_003}))["param"] == "response_format"
